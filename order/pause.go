package order

import (
	"context"
	"time"
)

// Pause is whether expiry is paused, and since when and through whom.
type Pause struct {
	Paused bool
	By     By
	// Since is when it was set; ignored when setting it.
	Since time.Time
}

// PauseSwitch keeps whether expiry is paused.
type PauseSwitch interface {
	// SetPause pauses or resumes expiry, everywhere at once. When it has paused it returns only once
	// nothing is expired any more.
	SetPause(ctx context.Context, state Pause) error
	// Pause tells the state that was set last.
	Pause(ctx context.Context) (Pause, error)
}

// Switch is what people do with a [PauseSwitch].
type Switch struct{ PauseSwitch PauseSwitch }

// Pause stops every expiry, everywhere, until [Switch.Resume]; payment goes on. Once it has returned
// nothing is expired any more: it waits for the expiries that are under way, for some milliseconds or, if
// one of them waits for a lock itself, some seconds. After an [ErrUnavailable] expiry may go on.
func (s Switch) Pause(ctx context.Context, by By) error {
	return s.set(ctx, Pause{Paused: true, By: by})
}

// Resume ends a pause. What became due meanwhile is expired as the timers and the sweep get to it.
func (s Switch) Resume(ctx context.Context, by By) error {
	return s.set(ctx, Pause{By: by})
}

func (s Switch) set(ctx context.Context, state Pause) error {
	if err := state.By.Validate(); err != nil {
		return err
	}
	return s.PauseSwitch.SetPause(ctx, state)
}

// Paused tells whether expiry is paused, and since when and through whom.
func (s Switch) Paused(ctx context.Context) (Pause, error) { return s.PauseSwitch.Pause(ctx) }
