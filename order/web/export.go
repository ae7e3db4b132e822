package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// Formats of an export, and their media types.
const (
	NDJSON = "ndjson"
	CSV    = "csv"
)

var exportMedia = map[string]string{NDJSON: "application/x-ndjson", CSV: "text/csv; charset=utf-8"}

type exportInput struct {
	FilterQuery
	Format string `query:"format" enum:"ndjson,csv" default:"ndjson" doc:"A letter a line as JSON, or a table for spreadsheets."`
}

func (s *Server) registerExport(api huma.API) {
	register(s, api, &operation{
		id: "export-dead-letters", method: http.MethodGet, path: "/v1/dead-letters/export", role: Viewer, status: http.StatusOK,
		summary: "Export dead letters",
		doc: "All that match, whole but for their history, the oldest first. It takes as long as it takes; if it fails on the way, the connection is cut. " +
			"In CSV, cells that a spreadsheet would take for a formula begin with an apostrophe.",
		contents: map[string]*huma.Schema{
			exportMedia[NDJSON]: api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[DeadLetter](), true, ""),
			exportMedia[CSV]:    {Type: huma.TypeString},
		},
	}, func(ctx context.Context, in *exportInput) (*huma.StreamResponse, error) {
		f := in.filter()
		if err := f.Validate(); err != nil {
			return nil, err
		}
		if _, err := look(ctx, s, s.cfg.Switch.Paused); err != nil {
			return nil, err // the database is away
		}
		return &huma.StreamResponse{Body: func(h huma.Context) {
			h.SetHeader("Content-Type", exportMedia[in.Format])
			h.SetHeader("Content-Disposition", `attachment; filename="dead-letters.`+in.Format+`"`)
			if h.Method() == http.MethodHead {
				return
			}
			a := h.Context().Value(answerKey{}).(*answer)
			if err := s.export(h.Context(), f, NewExporter(in.Format, a.stream())); err != nil {
				a.fail(err)
			}
		}}, nil
	})
}

// export writes letters for as long as they keep coming, and the client takes them.
func (s *Server) export(ctx context.Context, f deadletter.Filter, to Exporter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case s.searches <- struct{}{}:
		defer func() { <-s.searches }()
	case <-time.After(callTimeout):
		return fmt.Errorf("%w: as many exports and searches as may be are under way", order.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
	watch := time.AfterFunc(longTimeout, cancel)
	defer watch.Stop()
	var lost error
	err := outageOf(s.cfg.Desk.Each(ctx, f, func(l deadletter.Letter) error {
		lost = to.Write(WholeDeadLetterOf(l))
		watch.Reset(longTimeout)
		return lost
	}))
	if lost == nil {
		s.database.note(errors.Is(err, order.ErrUnavailable), err)
		lost = to.End()
	}
	return errors.Join(err, lost)
}

// Exporter writes letters in a format.
type Exporter interface {
	Write(l DeadLetter) error
	End() error // of what was written, once it is all
}

// NewExporter makes one for [NDJSON] or [CSV].
func NewExporter(format string, w io.Writer) Exporter {
	if format == CSV {
		return newCSVExporter(w)
	}
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	return jsonExporter{lines}
}

type jsonExporter struct{ lines *json.Encoder }

// Write writes a line.
func (e jsonExporter) Write(l DeadLetter) error { return e.lines.Encode(l) }

// End has nothing to do.
func (jsonExporter) End() error { return nil }
