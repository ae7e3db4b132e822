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
	vhost = cmp.Or(vhost, "/")
	type exchange struct {
		Name       string        `json:"name"`
		Vhost      string        `json:"vhost"`
		Type       string        `json:"type"`
		Durable    bool          `json:"durable"`
		AutoDelete bool          `json:"auto_delete"`
		Internal   bool          `json:"internal"`
		Arguments  amqp091.Table `json:"arguments"`
	}
	type queue struct {
		Name       string        `json:"name"`
		Vhost      string        `json:"vhost"`
		Durable    bool          `json:"durable"`
		AutoDelete bool          `json:"auto_delete"`
		Arguments  amqp091.Table `json:"arguments"`
	}
	type binding struct {
		Source          string        `json:"source"`
		Vhost           string        `json:"vhost"`
		Destination     string        `json:"destination"`
		DestinationType string        `json:"destination_type"`
		RoutingKey      string        `json:"routing_key"`
		Arguments       amqp091.Table `json:"arguments"`
	}
	var definitions struct {
		Exchanges []exchange `json:"exchanges"`
		Queues    []queue    `json:"queues"`
		Bindings  []binding  `json:"bindings"`
	}
	table := func(arguments amqp091.Table) amqp091.Table {
		if arguments == nil {
			return amqp091.Table{} // the import takes no null
		}
		return arguments
	}
	o := t.Objects()
	for _, e := range o.Exchanges {
		definitions.Exchanges = append(definitions.Exchanges, exchange{
			Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, Arguments: table(e.Arguments),
		})
	}
	for _, q := range o.Queues {
		definitions.Queues = append(definitions.Queues, queue{
			Name: q.Name, Vhost: vhost, Durable: true, Arguments: table(q.Arguments),
		})
	}
	for _, b := range o.Bindings {
		definitions.Bindings = append(definitions.Bindings, binding{
			Source: b.Exchange, Vhost: vhost, Destination: b.Queue, DestinationType: "queue", RoutingKey: b.Key, Arguments: table(nil),
		})
	}
	return json.MarshalIndent(definitions, "", "  ")
}
