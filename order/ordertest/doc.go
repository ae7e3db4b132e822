// Package ordertest holds what tests of anything that keeps or closes orders can share.
//
// [TestStore] is the contract of [order.Store]: whoever keeps orders elsewhere runs it over their own
// implementation. A [Ledger] is told what customers were answered and what subscribers received, and
// judges in the end whether the books agree: nothing lost, nothing done twice, nothing early, and nobody
// who paid expired.
package ordertest
