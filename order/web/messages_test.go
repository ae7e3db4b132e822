package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lapse-go/lapse/order/orderamqp"
)

// The description of the messages, and each schema that it refers to, are there for everybody.
func TestMessagesAreDescribed(t *testing.T) {
	s := start(t, nil)
	get := func(path string) (string, string) {
		t.Helper()
		answer, err := s.http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK || !json.Valid(body) {
			t.Errorf("%s: %d, %v: %.200s", path, answer.StatusCode, err, body)
		}
		return string(body), answer.Header.Get("Content-Type")
	}
	document, contentType := get("/asyncapi.json")
	if contentType != "application/vnd.aai.asyncapi+json;version=3.0.0" || !strings.Contains(document, `"lapse.events"`) {
		t.Errorf("%s: %.300s", contentType, document)
	}
	openAPI, _ := get("/openapi.json")
	for _, name := range orderamqp.Schemas {
		path := "/schemas/" + name + ".json"
		schema, contentType := get(path)
		if contentType != "application/schema+json" || !strings.Contains(schema, `"title": "`+name+`"`) {
			t.Errorf("%s: %s: %.200s", path, contentType, schema)
		}
		if !strings.Contains(document, `"`+path+`"`) || !strings.Contains(openAPI, `"`+path+`"`) {
			t.Errorf("nobody refers to %s", path)
		}
	}
}
