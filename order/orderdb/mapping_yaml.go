package orderdb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ReadMapping reads a mapping in YAML. Its keys are table, id, status, deadline, deadline_in, pending, paid,
// cancelled, expired and on_expiry; of paid, cancelled and on_expiry one value may stand for a list of one. The
// error says line by line what is wrong and what to write.
func ReadMapping(r io.Reader) (Mapping, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return Mapping{}, err
	}
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err = decoder.Decode(&document)
	switch {
	case errors.Is(err, io.EOF) || err == nil && isEmpty(document.Content[0]):
		return Mapping{}, errors.New("it is empty: describe the table, beginning with a line such as table: orders")
	case err != nil:
		return Mapping{}, err
	case document.Content[0].Kind != yaml.MappingNode:
		return Mapping{}, fmt.Errorf("line %d: it has to be lines of key: value, such as table: orders", document.Content[0].Line)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Mapping{}, errors.New("it has more than one document: describe one table")
	}

	var m Mapping
	lines := make(map[string][]int) // of the values of each key
	errs := m.read(document.Content[0], lines)
	for _, flaw := range m.flaws() {
		at, there := lines[flaw.key]
		switch {
		case !there:
			errs = append(errs, errors.New(flaw.text))
		case at != nil: // what is wrong with the others is said
			errs = append(errs, fmt.Errorf("line %d: %s", at[min(flaw.item, len(at)-1)], flaw.text))
		}
	}
	return m, errors.Join(errs...)
}

// read reads the fields, and on which lines they are: on none those that it finds something wrong with.
func (m *Mapping) read(node *yaml.Node, lines map[string][]int) (errs []error) {
	fields := m.fields()
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		wrong := func(format string, args ...any) {
			lines[key.Value] = nil
			errs = append(errs, fmt.Errorf("line %d: %s: %s", key.Line, key.Value, fmt.Sprintf(format, args...)))
		}
		at := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if at < 0 {
			wrong("there is no such key: write one of %s", strings.Join(keys(fields), ", "))
			continue
		}
		f := fields[at]
		if _, twice := lines[f.key]; twice {
			wrong("it is there twice: write it once")
			continue
		}
		values := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode && f.list != nil {
			values = value.Content
		}
		lines[f.key] = []int{key.Line}
		for n, value := range values {
			if value.Kind == yaml.MappingNode && f.key == "on_expiry" {
				wrong("statement %d has a colon and a space in it, which is a key's: write the statement on the lines after a |", n+1)
				break
			}
			if value.Kind != yaml.ScalarNode || isEmpty(value) {
				wrong("write a value for it, such as %s: %s", f.key, f.such)
				break
			}
			if f.text != nil {
				*f.text = value.Value
				continue
			}
			*f.list = append(*f.list, value.Value)
			lines[f.key] = append(lines[f.key][:n], value.Line)
		}
	}
	return errs
}

func keys(fields []field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.key
	}
	return all
}

func isEmpty(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}
