package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// ask has the guard look at the letters.
func (d *Desk) ask(ctx context.Context, letters []parcel) ([]Verdict, error) {
	verdicts := make([]Verdict, len(letters))
	var messages []amqp.Message
	var index []int
	for i, p := range letters {
		switch {
		case p.damage != nil:
			verdicts[i].Answer = "cannot be read"
		case d.cfg.Guard == nil:
			verdicts[i].Answer = "not checked"
		default:
			messages, index = append(messages, p.message()), append(index, i)
		}
	}
	if len(messages) == 0 {
		return verdicts, nil
	}
	now, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	answers, err := d.cfg.Guard.Ask(ctx, now, messages)
	if err != nil {
		return nil, fmt.Errorf("asking what has become of them: %w", err)
	}
	if len(answers) != len(messages) {
		return nil, fmt.Errorf("the guard gave %d answers about %d messages", len(answers), len(messages))
	}
	for i, answer := range answers {
		verdicts[index[i]] = answer
	}
	return verdicts, nil
}

// now is the time by the database's clock.
func (d *Desk) now(ctx context.Context) (time.Time, error) {
	var now instant
	err := d.cfg.DB.WithContext(ctx).Raw("SELECT UTC_TIMESTAMP(6)").Row().Scan(&now)
	return time.Time(now), err
}
