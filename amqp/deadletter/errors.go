package deadletter

import "errors"

var (
	// ErrInvalid is wrapped by errors that say what is wrong with what was asked for.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: there is no such letter or replay.
	ErrNotFound = errors.New("not found")
	// ErrEnded: the replay cannot be cancelled any more.
	ErrEnded = errors.New("ended already")
)

// BusyError: letters that were selected belong to a running replay.
type BusyError struct {
	Replay string // its id
}

func (e *BusyError) Error() string {
	return "some of these letters belong to replay " + e.Replay + ", which is running: wait for its end, or cancel it"
}
