package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// router finds what is at a path, of which a segment may be any {name}. An [http.ServeMux] will not do: ids
// may be anything, and it takes the id / for the end of the path, redirects to paths that it likes better,
// and refuses in plain text.
type router struct{ routes []route }

type route struct {
	pattern, method string
	segments        []string
	handler         http.HandlerFunc
}

// HandleFunc adds a pattern like that of an [http.ServeMux], for instance "GET /v1/orders/{id}".
func (rt *router) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	method, path, _ := strings.Cut(pattern, " ")
	rt.routes = append(rt.routes, route{pattern, method, strings.Split(path, "/"), handler})
}

// ServeHTTP is for huma's adapter, which never calls it.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if found, _ := rt.find(r); found != nil {
		found.handler(w, r)
		return
	}
	w.WriteHeader(http.StatusNotFound)
}

// find returns the route of a request, for which it sets the path values, or nil and the methods that there
// are at its path.
func (rt *router) find(r *http.Request) (found *route, allow []string) {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return nil, nil
		}
		segments[i] = plain
	}
	for i := range rt.routes {
		route := &rt.routes[i]
		if !slices.EqualFunc(route.segments, segments, matches) {
			continue
		}
		if r.Method == route.method || r.Method == http.MethodHead && route.method == http.MethodGet {
			for j, name := range route.segments {
				if isWild(name) {
					r.SetPathValue(strings.Trim(name, "{}"), segments[j])
				}
			}
			return route, nil
		}
		allow = append(allow, route.method)
		if route.method == http.MethodGet {
			allow = append(allow, http.MethodHead)
		}
	}
	return nil, allow
}

func matches(segment, given string) bool { return segment == given || isWild(segment) && given != "" }

func isWild(segment string) bool { return strings.HasPrefix(segment, "{") }
