// Package orderdb keeps orders in MySQL (8.0 or newer) or MariaDB (10.6 or newer): it is the
// [order.Repository] of a shop that has none of its own. The tables are in migrations/orders. A [Table] closes the
// orders of a shop that keeps them in a table of its own, which a [Mapping] describes.
//
// Every change is one READ COMMITTED transaction: the order, its lines, the stock, the timeline, and
// through [Emit] whatever has to be published. A transaction that loses a lock conflict is run again as
// a whole; a batch that cannot be settled as a whole is split until the order at fault is alone. Rows
// are locked in one order everywhere: the pause switch or the row of an extend request, orders by id,
// payments, and at last stock by sku.
//
// The database's clock decides. Times are UTC with microseconds, and go to and fro as text, so that
// [Store.PlaceIn] works in a session with any time zone, isolation level and driver settings.
package orderdb
