package doctor

import (
	"fmt"
	"strings"
	"time"
)

// maxSkew is how far apart two clocks may be.
const maxSkew = 2 * time.Second

// offset is a server's clock less this program's, as far as that can be told: somewhere between the two.
type offset struct {
	known     bool
	low, high time.Duration
}

func (o offset) middle() time.Duration { return (o.low + o.high) / 2 }

// less is the offset between the two servers' clocks.
func (o offset) less(other offset) offset {
	return offset{o.known && other.known, o.low - other.high, o.high - other.low}
}

// apart is how far apart two clocks are for certain.
func (o offset) apart() time.Duration { return max(0, o.low, -o.high) }

func (o offset) skewed() bool { return o.known && o.apart() > maxSkew }

// compareClocks finds the clock that is off. The database's decides over deadlines, whatever it shows.
func compareClocks(db, broker offset) Finding {
	const setIt = "have NTP (chrony, systemd-timesyncd) set the clock of "
	if !db.known && !broker.known {
		return Finding{Clocks, NotChecked, "neither server told its time", ""}
	}
	both := db.less(broker)
	var saw []string
	if db.known {
		saw = append(saw, "database "+lead(db)+" this program")
	}
	if broker.known {
		saw = append(saw, "broker "+lead(broker)+" this program")
	} else {
		saw = append(saw, "the broker's is not known")
	}
	if both.known {
		saw = append(saw, "database "+lead(both)+" broker")
	}
	f := Finding{Clocks, Fine, strings.Join(saw, ", "), ""}
	if !db.skewed() && !broker.skewed() && !both.skewed() {
		return f
	}
	f.State = Problem
	const (
		offDatabase = "The database's clock decides over deadlines: customers have until it says so, which is off from what they are shown by as much"
		offProgram  = "Nothing closes early or late for it, because the database's clock decides; times in logs and metrics, and deadlines in timers that others publish, are off by as much"
		offBroker   = "Nothing closes early or late for it, because the database's clock decides; but a clock that is set by steps makes timers in classic queues early or late, and the ages that metrics show are off by as much"
	)
	switch {
	case !broker.known:
		f.Saw += ". Either may be off"
		f.Cure = setIt + "both hosts. " + offDatabase
	case !db.known:
		f.Saw += ". Either may be off"
		f.Cure = setIt + "both hosts. " + offBroker
	case !broker.skewed():
		f.Saw += ". The database's is off"
		f.Cure = setIt + "the database's host. " + offDatabase
	case !both.skewed():
		f.Saw += ". This program's is off"
		f.Cure = setIt + "this host. " + offProgram
	case !db.skewed():
		f.Saw += ". The broker's is off"
		f.Cure = setIt + "the broker's host. " + offBroker
	default:
		f.Saw += ". No two of them agree"
		f.Cure = setIt + "all three hosts. " + offDatabase
	}
	return f
}

// lead says by how much one clock is ahead of another.
func lead(o offset) string {
	off := o.middle().Round(10 * time.Millisecond)
	switch {
	case o.low <= 0 && o.high >= 0 && o.high-o.low < 4*time.Second:
		return "agrees with"
	case off < 0:
		return fmt.Sprintf("%s behind", -off)
	}
	return fmt.Sprintf("%s ahead of", off)
}
