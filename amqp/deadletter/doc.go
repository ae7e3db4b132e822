// Package deadletter is the desk, where operators work on dead letters: messages that are out of tries, can
// never succeed, or found no queue. RabbitMQ cannot search, page or group a queue, and looking into one can kill
// its messages, so a [Desk] collects them into MySQL. It knows nothing of what messages are about; a [Guard] does.
//
// The way of a letter: it is collected ([Desk.Handler]) and open; one that the database refuses is parked in a queue,
// with the reason. Operators look at it ([Desk.List], [Desk.Groups],
// [Desk.Get]), and then it is replayed by a job ([Desk.Start]), found settled by the guard, or discarded. A
// message that dies again is a new letter, with the old ones in its history. What was resolved is kept for 90
// days, and all that anybody did stays in the audit.
package deadletter
