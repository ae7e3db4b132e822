package checkout

import (
	"fmt"
	"slices"
	"strings"
)

// Role is work that [Checkout.Serve] does. Any number of processes may do each.
type Role string

const (
	Relay Role = "relay" // publishes what the outbox holds
	Timer Role = "timer" // expires orders whose timers are due
	Sweep Role = "sweep" // expires overdue orders whose timer did not come
	Place Role = "place" // places orders that come by message
	Kinds Role = "kinds" // handles the messages of Config.Kinds
	Desk  Role = "desk"  // collects dead letters, and replays them
	API   Role = "api"   // keeps a connection to the broker for [Checkout.Submit]
)

// Roles are all of them.
var Roles = []Role{Relay, Timer, Sweep, Place, Kinds, Desk, API}

// ParseRoles reads roles separated by commas; empty means all.
func ParseRoles(text string) ([]Role, error) {
	if strings.TrimSpace(text) == "" {
		return Roles, nil
	}
	var roles []Role
	for word := range strings.SplitSeq(text, ",") {
		role := Role(strings.TrimSpace(word))
		if !slices.Contains(Roles, role) {
			return nil, fmt.Errorf("role %q: give some of relay, timer, sweep, place, kinds, desk, api, separated by commas", role)
		}
		if slices.Contains(roles, role) {
			return nil, fmt.Errorf("role %q is there twice", role)
		}
		roles = append(roles, role)
	}
	return roles, nil
}
