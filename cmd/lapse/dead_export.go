package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type deadExport struct {
	placeFlags
	stateFlag
	filterFlags
	Format string `env:"-" enum:"ndjson,csv" default:"ndjson" help:"ndjson, a JSON object a line, or csv for a spreadsheet."`
	File   string `env:"-" short:"f" help:"Write to this file, which is there only once it is complete. To standard output when not given."`
}

func (c *deadExport) Run(ctx context.Context, to console) error {
	filter, err := c.filter(c.state())
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		if c.File == "" {
			_, err := c.write(ctx, to.Out, desk, filter)
			return err
		}
		var n int64
		err := replaceFile(c.File, func(w io.Writer) (err error) {
			n, err = c.write(ctx, w, desk, filter)
			return err
		})
		if err == nil {
			fmt.Fprintf(to.Err, "%s in %s.\n", lettersOf(n), c.File)
		}
		return err
	})
}

func (c *deadExport) write(ctx context.Context, w io.Writer, desk *deadletter.Desk, filter deadletter.Filter) (n int64, err error) {
	buffered := bufio.NewWriterSize(w, 64<<10)
	exporter := web.NewExporter(c.Format, buffered)
	err = desk.Each(ctx, filter, func(l deadletter.Letter) error {
		n++
		return exporter.Write(web.WholeDeadLetterOf(l))
	})
	return n, errors.Join(err, exporter.End(), buffered.Flush())
}

// replaceFile writes beside the file, and puts it in its place when it is complete. It has bodies of messages in it, so only its owner reads it.
func replaceFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("%w: --file: %w", errConfig, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
