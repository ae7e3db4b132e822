package orderamqp

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
)

//go:embed schemas/*.json
var schemas embed.FS

// Schemas are the names of the JSON Schemas (2020-12) of the bodies of all messages.
var Schemas = []string{KindPlace, KindPaymentTimeout, "event"}

// Schema is one of [Schemas].
func Schema(name string) ([]byte, error) {
	text, err := schemas.ReadFile("schemas/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("there is no schema %q: ask for one of %s", name, strings.Join(Schemas, ", "))
	}
	return text, nil
}

// AsyncAPI is the AsyncAPI 3.0 document of the messages of a service, with references to the schemas at
// /schemas/NAME.json.
func AsyncAPI(namespace string) []byte {
	text, err := schemas.ReadFile("schemas/asyncapi.json")
	if err != nil {
		panic(err) // it is embedded
	}
	return bytes.ReplaceAll(text, []byte("{namespace}"), []byte(namespace))
}
