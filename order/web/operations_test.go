package web

// Operation is one of the server's, for tests that go through all of them.
type Operation struct {
	ID, Method, Path string
	Public, Page     bool
	MaxBody          int64
}

// Operations are all that the server has.
func (s *Server) Operations() []Operation {
	var all []Operation
	for _, op := range s.operations {
		all = append(all, Operation{op.id, op.method, op.path, op.public, op.page, op.maxBody})
	}
	return all
}
