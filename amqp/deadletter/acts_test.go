package deadletter

import (
	"testing"

	"gorm.io/gorm"
)

const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"

// numbers are 0 to 99,999 as n.
const numbers = "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM " +
	digits + " a, " + digits + " b, " + digits + " c, " + digits + " e, " + digits + " f"

// explain is the index that the query of one table goes by, "" if none.
func explain(t testing.TB, db *gorm.DB, query string, args ...any) string {
	t.Helper()
	plan := map[string]any{}
	if err := db.Raw("EXPLAIN FORMAT=TRADITIONAL "+query, args...).Scan(&plan).Error; err != nil {
		t.Fatal(err)
	}
	key, _ := plan["key"].(string)
	if bytes, ok := plan["key"].([]byte); ok {
		key = string(bytes)
	}
	return key
}
