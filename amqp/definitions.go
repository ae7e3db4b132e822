package amqp

import (
	"cmp"
	"encoding/json"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Definitions is the topology as JSON for `rabbitmqctl import_definitions` and for the broker's
// load_definitions (https://www.rabbitmq.com/docs/definitions). The vhost, "/" when empty, has to exist. The
// import makes what is missing and changes nothing that exists.
func (t Topology) Definitions(vhost string) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	definitions := map[string][]map[string]any{}
	add := func(list string, arguments amqp091.Table, object map[string]any) {
		if arguments == nil {
			arguments = amqp091.Table{} // the import takes no null
		}
		object["vhost"], object["arguments"] = cmp.Or(vhost, "/"), arguments
		definitions[list] = append(definitions[list], object)
	}
	o := t.Objects()
	for _, e := range o.Exchanges {
		add("exchanges", e.Arguments, map[string]any{"name": e.Name, "type": e.Kind, "durable": true, "auto_delete": false, "internal": false})
	}
	for _, q := range o.Queues {
		add("queues", q.Arguments, map[string]any{"name": q.Name, "durable": true, "auto_delete": false})
	}
	for _, b := range o.Bindings {
		add("bindings", nil, map[string]any{"source": b.Exchange, "destination": b.Queue, "destination_type": "queue", "routing_key": b.Key})
	}
	return json.MarshalIndent(definitions, "", "  ")
}
