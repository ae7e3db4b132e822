//go:build !race

package deadletter

const underRace = false
