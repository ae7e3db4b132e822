package web

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/order/orderamqp"
)

// registerMessages serves the description of the messages, as public as that of the API.
func (s *Server) registerMessages(api *huma.OpenAPI) error {
	s.publish(api, "asyncapi", "/asyncapi.json", "The description of the messages, in AsyncAPI 3.0",
		"application/vnd.aai.asyncapi+json;version=3.0.0", orderamqp.AsyncAPI(s.cfg.Namespace))
	for _, name := range orderamqp.Schemas {
		schema, err := orderamqp.Schema(name)
		if err != nil {
			return err
		}
		s.publish(api, "schema-"+name, "/schemas/"+name+".json", "The JSON Schema of "+name, "application/schema+json", schema)
	}
	return nil
}

// publish serves a document, and mentions it in that of the API.
func (s *Server) publish(api *huma.OpenAPI, id, path, summary, contentType string, document []byte) {
	s.handle(&operation{id: id, method: http.MethodGet, path: path, public: true}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(document)
	})
	responses := problemResponses(api, []*problemType{wrongHost})
	responses["200"] = &huma.Response{Description: "It is.", Content: map[string]*huma.MediaType{contentType: {}}}
	api.AddOperation(&huma.Operation{
		OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Responses: responses,
		Security: []map[string][]string{}, // none
	})
}
