// Package amqp delays messages on RabbitMQ, hands them to a handler when they are due, and keeps those
// that fail. It knows nothing of what they are about.
//
// A [Topology] is the exchanges and queues: a [Ladder] of TTL queues (rungs) that dead-letter into one
// due exchange, a due queue for each kind of message, and queues for dead letters and for what nobody is
// bound to. A [Publisher] sends to them and waits for the broker's confirms. A [Consumer] takes what is
// due, gives it to a [Handler] in batches, and settles each message as its [Outcome] says.
//
// # The way of a message
//
// It is published to the exchange of a rung with its kind as the routing key, waits there, and is
// dead-lettered to the due exchange and so into its kind's due queue. What comes back too early, because
// there is no rung of its length or because its deadline was moved, is put on the next rung: a hop. What
// fails is put on a rung for its backoff: a retry. What is out of tries or can never succeed is buried in
// the dead-letter queue, with the reason in its headers.
//
// # What is guaranteed
//
//   - A message whose publishing was confirmed reaches its handler at least once. Queues are replicated
//     (quorum), messages persistent, dead-lettering is at least once, and a delivery is acknowledged
//     only after its handler has answered and whatever had to be published for it was confirmed.
//   - It is never early by more than the millisecond to which RabbitMQ rounds, and while servers and
//     consumers are up it is late by at most a rung's slack ([Ladder.Step]) and the time it takes to be
//     handled.
//   - A message is not blamed for an outage. While the handler's server is away, or the broker blocks
//     publishing, messages are held unacknowledged and no attempt is counted.
//   - Whatever waits is bounded, by a context or by the heartbeat, also on a dead socket.
//   - A queue that does not answer, for want of a majority for instance, holds up its own messages only.
//
// # And what is not
//
//   - A message may be handled more than once: handlers have to be idempotent. It keeps its id over hops,
//     retries and replays, so that they can be.
//   - Order is not kept.
//   - A message that cost a thousand deliveries without ever being settled (its consumer crashing each
//     time) is buried by the broker's delivery limit.
//   - With classic queues ([Topology].Type) dead-lettering is not confirmed inside the broker: a
//     broker that dies at the wrong moment loses what was just due. Use them for what can be lost, or
//     where something else, like a sweep over a database, brings it back.
//   - A name that nothing is bound to is not an error for the broker when it is published to the due
//     exchange: such messages gather in the unrouted queue, which has to be watched.
//
// RabbitMQ 3.10 and newer serve; the facts about it that shape this package are cited where they are
// used.
package amqp
