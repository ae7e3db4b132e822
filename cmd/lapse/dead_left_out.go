package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
)

// leaveOut says which of the letters that are named are left out, because nothing can be done with them: those that are
// not open, or, unless open ones are wanted, those that are. It returns how many remain.
func leaveOut(ctx context.Context, to console, desk *deadletter.Desk, ids []int64, wanted deadletter.State) (int64, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	var out []string
	for _, id := range ids {
		letter, err := desk.Get(ctx, id)
		switch {
		case database.IsOutage(err):
			return 0, err
		case err != nil: // such as of one that is not there: what is to be done with it says so
		case wanted == deadletter.Open && letter.State != deadletter.Open:
			out = append(out, fmt.Sprintf("%d (%s)", id, letter.State))
		case wanted != deadletter.Open && letter.State == deadletter.Open:
			out = append(out, fmt.Sprint(id))
		}
	}
	const most = 20
	why, names := "Not open", strings.Join(out[:min(len(out), most)], ", ")
	if wanted != deadletter.Open {
		why = "Open already"
	}
	if more := len(out) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if len(out) > 0 {
		fmt.Fprintf(to.Err, "%s, and so left out: %s.\n", why, names)
	}
	return int64(len(ids) - len(out)), nil
}
