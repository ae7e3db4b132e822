//go:build race

package deadletter

// underRace says that the race detector slows this program down, and not the servers.
const underRace = true
