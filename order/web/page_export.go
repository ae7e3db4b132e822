package web

import (
	"net/http"
)

// exportPage answers with all letters that match, as a file, for as long as that takes.
func (s *Server) exportPage(w http.ResponseWriter, r *http.Request) {
	a := r.Context().Value(answerKey{}).(*answer)
	f, err := filterOf(r.URL.Query())
	format := r.URL.Query().Get("format")
	if err == nil && exportMedia[format] == "" {
		err = problem(invalid, "format %.80q: give ndjson or csv", format)
	}
	if err == nil {
		_, err = look(r.Context(), s, s.cfg.Switch.Paused) // is the database away?
	}
	if err != nil {
		a.fail(err)
		return
	}
	pageHeaders(w.Header())
	w.Header().Set("Content-Type", exportMedia[format])
	w.Header().Set("Content-Disposition", `attachment; filename="dead-letters.`+format+`"`)
	if r.Method == http.MethodHead {
		return
	}
	if err := s.export(r.Context(), f, NewExporter(format, a.stream())); err != nil {
		a.fail(err)
	}
}
