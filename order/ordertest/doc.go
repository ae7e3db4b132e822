// Package ordertest tests implementations of the interfaces of package order.
package ordertest
