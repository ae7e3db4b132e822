// Package checkout puts Lapse together: the orders in MySQL, the outbox beside them, and the loops that
// close what nobody paid for.
//
// A checkout written in Go imports it and needs nothing but its own database to place orders, with [Checkout]; the
// broker is the business of whoever runs the loops, which is usually the program lapse, and of
// [Checkout.Submit], which takes orders in without the database. Any other program sends that one messages of
// the kind order.place.
//
// [Closer] is the loops alone, for a shop that keeps its orders itself, and for programs that handle further
// kinds of messages, events among them.
package checkout
