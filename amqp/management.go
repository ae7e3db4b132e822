package amqp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// managementTimeout bounds one request to the management API, and managementLimit its answer in
	// bytes.
	managementTimeout = 10 * time.Second
	managementLimit   = 64 << 20
	// managementPage is the most objects in one answer (https://www.rabbitmq.com/docs/http-api-reference).
	managementPage = "500"
)

// Why the management API does not tell. What [Topology.Plan] returns wraps them.
var (
	// ErrManagementAway: it cannot be reached, or is out of order.
	ErrManagementAway = errors.New("it is away")
	// ErrManagementRefused: it refuses the login.
	ErrManagementRefused = errors.New("it refuses the login")
)

// Management is the HTTP API of the broker's management plugin. Lapse only reads there.
type Management struct {
	endpoint string // without user and password
	login    func(*http.Request)
	client   *http.Client
}

// NewManagement is the management API at a URL such as http://user:password@host:15672, whose user has
// one of the tags management, monitoring and administrator. It does not connect. An error is about the
// URL, and does not repeat its password.
func NewManagement(rawURL string) (*Management, error) {
	const form = "it has to be like http://user:password@host:15672, with special characters in user and password written as %40, %2F and so on"
	u, err := url.Parse(rawURL) // whose error quotes the URL
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the URL of the management API is not valid: " + form)
	}
	password, given := u.User.Password()
	if !given {
		return nil, errors.New("the URL of the management API names no user and password: " + form)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the URL of the management API goes on after its path: " + form)
	}
	user := u.User.Username()
	u.User = nil
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // it is asked now and then
	return &Management{
		endpoint: strings.TrimRight(u.String(), "/"),
		login:    func(r *http.Request) { r.SetBasicAuth(user, password) },
		client: &http.Client{
			Timeout:   managementTimeout,
			Transport: transport,
			// Wherever that leads, the password is not meant for it.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// String is the URL without user and password.
func (m *Management) String() string { return m.endpoint }

// What the API says of an object. Some versions say [] for an empty table, and words where others have
// a boolean.
type (
	managedTable    map[string]any
	managedExchange struct {
		Name       string
		Type       string
		Durable    any
		AutoDelete any `json:"auto_delete"`
		Internal   any
		Arguments  managedTable
	}
	managedQueue struct {
		Name       string
		Type       string
		Durable    any
		AutoDelete any `json:"auto_delete"`
		Exclusive  any
		Arguments  managedTable
		// Policies come with the statistics, which a new queue has after some seconds only. Effective is
		// nil until then.
		Policy         string
		OperatorPolicy string       `json:"operator_policy"`
		Effective      managedTable `json:"effective_policy_definition"`
	}
	managedBinding struct {
		Source          string
		Destination     string
		DestinationType string `json:"destination_type"`
		RoutingKey      string `json:"routing_key"`
	}
)

// UnmarshalJSON keeps numbers as they are written.
func (t *managedTable) UnmarshalJSON(text []byte) error {
	if strings.TrimSpace(string(text)) == "[]" {
		*t = managedTable{}
		return nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	return decoder.Decode((*map[string]any)(t))
}

// managed is what there is in a namespace.
type managed struct {
	exchanges map[string]managedExchange
	queues    map[string]managedQueue
	bindings  map[Binding]bool
}

// read lists what there is in a namespace of a vhost.
func (m *Management) read(ctx context.Context, vhost, namespace string) (managed, error) {
	found := managed{map[string]managedExchange{}, map[string]managedQueue{}, map[Binding]bool{}}
	prefix := namespace + "."
	exchanges, err := readPages[managedExchange](ctx, m, "exchanges", vhost, prefix,
		"name,type,durable,auto_delete,internal,arguments")
	if err != nil {
		return managed{}, err
	}
	for _, e := range exchanges {
		found.exchanges[e.Name] = e
	}
	queues, err := readPages[managedQueue](ctx, m, "queues", vhost, prefix,
		"name,type,durable,auto_delete,exclusive,arguments,policy,operator_policy,effective_policy_definition")
	if err != nil {
		return managed{}, err
	}
	for _, q := range queues {
		found.queues[q.Name] = q
	}
	var bindings []managedBinding
	if err := m.get(ctx, "bindings", vhost, nil, &bindings); err != nil {
		return managed{}, err
	}
	for _, b := range bindings {
		if b.DestinationType == "queue" {
			found.bindings[Binding{b.Source, b.Destination, b.RoutingKey}] = true
		}
	}
	return found, nil
}

// readPages lists the objects whose names begin with prefix, with these columns.
func readPages[T any](ctx context.Context, m *Management, what, vhost, prefix, columns string) ([]T, error) {
	var all []T
	for page := 1; ; page++ {
		var answer struct {
			Items     []T
			PageCount int `json:"page_count"`
		}
		err := m.get(ctx, what, vhost, url.Values{
			"name": {"^" + regexp.QuoteMeta(prefix)}, "use_regex": {"true"}, "pagination": {"true"},
			"page": {strconv.Itoa(page)}, "page_size": {managementPage}, "columns": {columns},
		}, &answer)
		if err != nil {
			return nil, err
		}
		all = append(all, answer.Items...)
		if page >= answer.PageCount {
			return all, nil
		}
	}
}

// get reads the list of what there is in a vhost.
func (m *Management) get(ctx context.Context, what, vhost string, query url.Values, to any) error {
	if err := m.request(ctx, what+"/"+url.PathEscape(vhost)+"?"+query.Encode(), to); err != nil {
		return fmt.Errorf("reading the %s of vhost %q from the management API at %s: %w", what, vhost, m.endpoint, err)
	}
	return nil
}

func (m *Management) request(ctx context.Context, path string, to any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.endpoint+"/api/"+path, nil)
	if err != nil {
		return err
	}
	m.login(request)
	response, err := m.client.Do(request)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the URL, which is long
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrManagementAway, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, managementLimit+1))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrManagementAway, err)
	}
	switch {
	case response.StatusCode == http.StatusUnauthorized, response.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w: the user name or password is wrong, the user has none of the tags management, monitoring and administrator, or no permission in this vhost", ErrManagementRefused)
	case response.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%w: it answers %s", ErrManagementAway, response.Status)
	case response.StatusCode == http.StatusNotFound:
		return errors.New("it knows no such vhost, or is no management API")
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", response.Status)
	case len(body) > managementLimit:
		return fmt.Errorf("it answers with more than %d MB", managementLimit>>20)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("it answers with something else: %w", err)
	}
	return nil
}
