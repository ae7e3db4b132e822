package doctor

import (
	"regexp"
	"strconv"
)

var versionPattern = regexp.MustCompile(`^(\d{1,4})\.(\d{1,4})(?:\D|$)`)

// atLeast compares versions such as 3.10.8, 4.0.0-beta.1 or 10.11.19-MariaDB-log.
func atLeast(version string, major, minor int) (ok, known bool) {
	parts := versionPattern.FindStringSubmatch(version)
	if parts == nil {
		return false, false
	}
	x, _ := strconv.Atoi(parts[1])
	y, _ := strconv.Atoi(parts[2])
	return x > major || x == major && y >= minor, true
}
