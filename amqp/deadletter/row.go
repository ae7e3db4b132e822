package deadletter

import (
	"database/sql/driver"
	"fmt"
	"time"
)

// row is a line of lapse_dead_letters. What may be any bytes is bytes, so that no session's character set matters.
type row struct {
	ID           int64   `gorm:"column:id;primaryKey"`
	Identity     string  `gorm:"column:identity"`
	MessageID    []byte  `gorm:"column:message_id"`
	Kind         []byte  `gorm:"column:kind"`
	Subject      []byte  `gorm:"column:subject"`
	Queue        []byte  `gorm:"column:queue"`
	Exchange     []byte  `gorm:"column:exchange"`
	RoutingKey   []byte  `gorm:"column:routing_key"`
	Reason       string  `gorm:"column:reason"`
	Attempts     int     `gorm:"column:attempts"`
	Error        []byte  `gorm:"column:error"`
	FirstError   []byte  `gorm:"column:first_error"`
	FirstErrorAt instant `gorm:"column:first_error_at"`
	Fingerprint  string  `gorm:"column:fingerprint"`
	Properties   []byte  `gorm:"column:properties"`
	Headers      []byte  `gorm:"column:headers"`
	Body         []byte  `gorm:"column:body"`
	Size         int     `gorm:"column:size"`
	DiedAt       instant `gorm:"column:died_at"`
	CollectedAt  instant `gorm:"column:collected_at"`
	Replays      int     `gorm:"column:replays"`
	ReplayedBy   string  `gorm:"column:replayed_by"`
	State        string  `gorm:"column:state"`
	ResolvedAt   instant `gorm:"column:resolved_at"`
	ResolvedBy   string  `gorm:"column:resolved_by"`
	Resolution   string  `gorm:"column:resolution"`
	ReplayID     *string `gorm:"column:replay_id"`
}

// TableName is for gorm.
func (row) TableName() string { return "lapse_dead_letters" }

const (
	// listed are the columns that a list needs, with little of errors that go on and on, and whole are all.
	listed = others + ", LEFT(error, 1000) AS error, LEFT(first_error, 1000) AS first_error"
	whole  = others + ", error, first_error, properties, headers, body"
	others = "id, identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, first_error_at, " +
		"fingerprint, size, died_at, collected_at, replays, replayed_by, state, resolved_at, resolved_by, resolution, replay_id"
)

// letter is the row as a letter; without properties, headers and body if these were not read.
func (r row) letter() (Letter, error) {
	l := Letter{
		ID: r.ID, MessageID: string(r.MessageID), Kind: string(r.Kind), Subject: string(r.Subject), Queue: string(r.Queue),
		Exchange: string(r.Exchange), RoutingKey: string(r.RoutingKey),
		Reason: Reason(r.Reason), Attempts: r.Attempts,
		Error: string(r.Error), FirstError: string(r.FirstError), FirstErrorAt: time.Time(r.FirstErrorAt), Group: r.Fingerprint,
		Body: r.Body, Size: r.Size,
		DiedAt: time.Time(r.DiedAt), CollectedAt: time.Time(r.CollectedAt), Replays: r.Replays, ReplayedBy: r.ReplayedBy,
		State: State(r.State),
	}
	if l.State != Open { // of one that is being replayed it is written in advance
		l.ResolvedAt, l.ResolvedBy, l.Resolution = time.Time(r.ResolvedAt), r.ResolvedBy, r.Resolution
	}
	if r.ReplayID != nil {
		l.Replay = *r.ReplayID
	}
	var err error
	if r.Headers != nil {
		if l.Headers, err = decodeTable(r.Headers); err != nil {
			return Letter{}, fmt.Errorf("letter %d: its headers: %s", r.ID, err.Error()) // as text: where it ends too early, that is no outage
		}
	}
	if r.Properties != nil {
		if l.Properties, err = decodeProperties(r.Properties); err != nil {
			return Letter{}, fmt.Errorf("letter %d: its properties: %s", r.ID, err.Error())
		}
	}
	return l, nil
}

// instant passes a time to and from the database in UTC, under any parseTime and loc of the pool. NULL is the zero
// time.
type instant time.Time

const instantLayout = "2006-01-02 15:04:05.000000"

// Value is text: a time.Time the driver would convert to the zone that the DSN names.
func (t instant) Value() (driver.Value, error) {
	if time.Time(t).IsZero() {
		return nil, nil
	}
	return time.Time(t).UTC().Format(instantLayout), nil
}

// Scan reads what the clock showed as UTC, whichever zone the DSN says that it is in.
func (t *instant) Scan(src any) error {
	var text string
	switch src := src.(type) {
	case nil:
		*t = instant{}
		return nil
	case time.Time:
		text = src.Format(instantLayout)
	case []byte:
		text = string(src)
	case string:
		text = src
	default:
		return fmt.Errorf("a time came as %T", src)
	}
	parsed, err := time.ParseInLocation(instantLayout, text, time.UTC)
	*t = instant(parsed)
	return err
}
