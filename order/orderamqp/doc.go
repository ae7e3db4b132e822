// Package orderamqp is how orders speak AMQP: the messages that carry payment deadlines, orders to place and
// events, and the handlers that expire orders when their timers are due and place those that are asked for.
package orderamqp
