// Package order is the business: orders that have to be paid by a deadline, and what becomes of them.
//
// An order is placed pending, with its stock reserved, and then becomes exactly one of paid, cancelled
// (by a person) or expired (by its deadline), for good. The rules are pure functions, the transitions
// [Place], [Pay], [Cancel], [Extend] and [Expire]; a [Repository] applies them, each in one transaction
// with the stock, the timeline and the event that has to be published. [Service] is the whole of it for
// a checkout or an operator, and [Sweep] expires what no timer came for.
//
// What holds:
//
//   - A paid order is never expired, and an expired one never becomes paid: payment and expiry change
//     the same row, and whichever commits first wins. A payment is accepted as long as the order is
//     pending, also after its deadline if nothing has expired it yet.
//   - A payment that comes too late is recorded and has one order.payment_late published, so that it is
//     refunded.
//   - Stock is reserved by placing, consumed by payment, and given back once by cancelling or expiry.
//   - Every change is one event, numbered by the order's version without gaps.
//   - The database's clock decides what is due, never the program's.
//   - Every operation may be done again when its answer was lost: placing is known by the order's id and
//     content, payment by its reference, extending all by its key, and the others by the order's state.
//     Two are not known: placing without an id, and adding to the stock.
//
// The package imports the standard library only. Package orderdb is the repository on MySQL and
// MariaDB, and has a [Store] over a shop's own table as well; any other one implements Store and runs the suite
// in ordertest.
package order
