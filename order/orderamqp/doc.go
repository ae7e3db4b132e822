// Package orderamqp is how orders speak AMQP: the messages that carry payment deadlines and events, and
// the handler that expires orders when their timers are due.
package orderamqp
