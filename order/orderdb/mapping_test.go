package orderdb_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order/orderdb"
)

func TestReadMapping(t *testing.T) {
	got, err := orderdb.ReadMapping(strings.NewReader(`
table: shop.orders
id: 'order no'
status: status
deadline: pay_until
deadline_in: +08:00
pending: 00   # as it is written
paid: [1, yes]
cancelled: 0x3
expired: "4"
on_expiry:
  - UPDATE holds SET gone = TRUE
      WHERE order_id IN (:ids)
`))
	want := orderdb.Mapping{
		Table: "shop.orders", ID: "order no", Status: "status", Deadline: "pay_until", DeadlineIn: "+08:00",
		Pending: "00", Paid: []string{"1", "yes"}, Cancelled: []string{"0x3"}, Expired: "4",
		OnExpiry: []string{"UPDATE holds SET gone = TRUE WHERE order_id IN (:ids)"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestReadMappingSaysWhatIsWrong(t *testing.T) {
	const whole = "table: orders\nid: id\nstatus: status\ndeadline: due\npending: 0\npaid: 1\nexpired: 2\n"
	for _, test := range []struct{ yaml, says string }{
		{whole, ""},
		{"", "it is empty: describe the table"},
		{"# nothing\n", "it is empty"},
		{"null", "it is empty"},
		{"- table: orders", "line 1: it has to be lines of key: value"},
		{"table: orders\n id: id", "line 2"},
		{whole + "---\n" + whole, "it has more than one document"},
		{whole + "---\n[", "it has more than one document"},
		{whole + "panding: 1", "line 8: panding: there is no such key: write one of table, id, status, deadline, deadline_in, pending, paid, cancelled, expired, on_expiry"},
		{whole + "paid: 3", "line 8: paid: it is there twice: write it once"},
		{"paid: 1", "table is missing: write for instance table: orders\nid is missing: write for instance id: id\nstatus is missing: write for instance status: status\n" +
			"deadline is missing: write for instance deadline: pay_until\npending is missing: write for instance pending: 0\nexpired is missing: write for instance expired: 4"},
		{whole + "deadline_in: Beijing", "line 8: deadline_in: Beijing: write UTC, an offset such as +08:00, seconds or milliseconds"},
		{whole + "deadline_in: +8", "line 8: deadline_in: +8: write UTC"},
		{whole + "deadline_in:", "line 8: deadline_in: write a value for it, such as deadline_in: UTC"},
		{whole + "cancelled: [3, [4]]", "line 8: cancelled: write a value for it"},
		{whole + "cancelled: {a: 3}", "line 8: cancelled: write a value for it"},
		{strings.Replace(whole, "paid: 1", "paid: []", 1), "line 6: paid is missing: write for instance paid: [1, 2]"},
		{strings.Replace(whole, "id: id", "id: [id]", 1), "line 2: id: write a value for it, such as id: id"},
		{strings.Replace(whole, "id: id", "id: ''", 1), "line 2: id is missing"},
		{strings.Replace(whole, "id: id", "id: id?", 1), `line 2: id: "id?": a name with a question mark cannot be used`},
		{strings.Replace(whole, "table: orders", "table: a.b.c", 1), "line 1: table: a.b.c: write table or database.table"},
		{strings.Replace(whole, "table: orders", "table: orders.", 1), "line 1: table: orders.: write table or database.table"},
		{strings.Replace(whole, "table: orders", "table: .orders", 1), "line 1: table: .orders: write table or database.table"},
		{whole + "cancelled:\n  - 3\n  - 2\n", `line 7: status "2" is both cancelled and expired: each has one meaning`},
		{whole + "cancelled:\n  - 3\n  - 1\n", `line 10: status "1" is both paid and cancelled`},
		{whole + "on_expiry:\n  - DELETE FROM holds WHERE id IN (:ids)\n  - DELETE FROM holds\n", "line 10: on_expiry, statement 2: it has no (:ids), so it would be about all orders"},
		{whole + "on_expiry: DELETE FROM holds WHERE id = :ids", "line 8: on_expiry, statement 1: write :ids in brackets"},
		{whole + "on_expiry: DELETE FROM holds WHERE id IN (:ids) AND why = 'why?'", "line 8: on_expiry, statement 1: it has a question mark"},
		{whole + "on_expiry:\n  - UPDATE holds SET why = 'gone: late' WHERE id IN (:ids)", "line 8: on_expiry: statement 1 has a colon and a space in it, which is a key's: write the statement on the lines after a |"},
		{whole + "on_expiry:\n  - |\n    UPDATE holds SET why = 'gone: #late' WHERE id IN (:ids)", ""},
		{whole + "on_expiry: TRUNCATE holds -- (:ids)", "line 8: on_expiry, statement 1: write one that begins with INSERT, UPDATE, DELETE, REPLACE or WITH"},
	} {
		_, err := orderdb.ReadMapping(strings.NewReader(test.yaml))
		if test.says == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s\n... said %v, want %s", test.yaml, err, test.says)
		}
	}
}
