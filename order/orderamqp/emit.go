package orderamqp

import (
	"cmp"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
)

// Emit returns the function that writes events and timers into the outbox, in the transaction of the
// change that caused them.
func Emit(topology amqp.Topology) func(*gorm.DB, []order.Event, []order.Timer) error {
	exchange := topology.Events()
	source := cmp.Or(topology.Namespace, "lapse")
	return func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
		messages := make([]outbox.Message, 0, len(events)+len(timers))
		for _, e := range events {
			m, err := EncodeEvent(source, e)
			if err != nil {
				return err
			}
			m.AppID = source
			messages = append(messages, outbox.Message{Message: m, Exchange: exchange})
		}
		for _, t := range timers {
			m, err := EncodeTimer(t)
			if err != nil {
				return err
			}
			m.AppID = source
			messages = append(messages, outbox.Message{Message: m, Deadline: t.Deadline, Window: t.Window})
		}
		return outbox.Add(tx, messages...)
	}
}
