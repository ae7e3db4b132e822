package amqp

import (
	"context"
	"math"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// recognise finds out when the log is not the one any more that After is of: from beyond the end, the broker would
// send nothing until the log has grown so far (tried with RabbitMQ 3.10 and 4.3).
func (r *historyReader) recognise(ctx context.Context) error {
	if r.After == nil {
		return nil
	}
	end, known, err := r.end(ctx)
	if err == nil && known && *r.After >= end {
		r.Logger.Warn("the log is another than before, and is read anew", "after", *r.After, "end", end)
		r.After = nil
	}
	return err
}

// allRead is whether there is nothing more, and not only nothing that has come yet.
func (r *historyReader) allRead(ctx context.Context) (bool, error) {
	if r.After == nil {
		next, err := r.peek(ctx, r.from(), 1)
		return err == nil && len(next) == 0, err
	}
	end, known, err := r.end(ctx)
	return err == nil && (!known || *r.After+1 >= end), err
}

// miss tells what retention has removed before it was read. Not every gap is a loss: the broker has offsets for itself,
// at the beginning of a segment.
func (r *historyReader) miss(ctx context.Context, next int64) {
	first, err := r.peek(ctx, "first", 1)
	if err == nil && len(first) > 0 && first[0] > next {
		r.Logger.Warn("retention has removed messages before they were read", "after", next-1, "begins", first[0])
	}
}

// end is the offset that the next message gets. It is not known while the newest segment of the log is empty.
func (r *historyReader) end(ctx context.Context) (next int64, known bool, err error) {
	const chunk = math.MaxUint16 // none has more messages: 4096, unless the broker is configured otherwise
	offsets, err := r.peek(ctx, "last", chunk)
	if n := len(offsets); n > 0 {
		return offsets[n-1] + 1, true, err
	}
	if err == nil {
		offsets, err = r.peek(ctx, "first", 1)
	}
	return 0, len(offsets) == 0, err
}

// peek returns the offsets of what the broker sends from a position on, at most so many.
func (r *historyReader) peek(ctx context.Context, from any, most int) (offsets []int64, err error) {
	// RabbitMQ 3.10 sends what there is before it answers the request; 4.3 mostly does, else within milliseconds.
	const patience = time.Second
	const tag = "peek"
	channel, err := r.Conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	defer r.close(channel)
	deliveries, err := r.consume(ctx, channel, tag, from, most)
	if err != nil {
		return nil, err
	}
	note := func(d amqp091.Delivery) {
		offset, _ := d.Headers["x-stream-offset"].(int64)
		offsets = append(offsets, offset)
	}
	select {
	case d, open := <-deliveries:
		if !open {
			return nil, errLost
		}
		note(d)
	case <-time.After(patience):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := r.ask(ctx, func() error { return channel.Cancel(tag, false) }); err != nil {
		return nil, err
	}
	for d := range deliveries {
		note(d) // it was sent before the answer
	}
	return offsets, nil
}

// consume begins to read. Streams are read with acknowledgements, which only ask for more.
func (r *historyReader) consume(ctx context.Context, channel *amqp091.Channel, tag string, from any, prefetch int) (<-chan amqp091.Delivery, error) {
	var deliveries <-chan amqp091.Delivery
	err := r.ask(ctx, func() error {
		err := channel.Qos(prefetch, 0, false)
		if err == nil {
			deliveries, err = channel.Consume(r.Topology.EventsLog(), tag, false, false, false, false, amqp091.Table{"x-stream-offset": from})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return deliveries, nil
}

// ask bounds a request.
func (r *historyReader) ask(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return answered(ctx, do)
}

func (r *historyReader) close(channel *amqp091.Channel) {
	_ = r.ask(context.Background(), channel.Close) // it may be gone already, which is as good
}
