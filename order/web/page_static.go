package web

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
)

// staticFiles are the static files.
type staticFiles struct {
	version string // a hash of all
	content map[string][]byte
}

func readStatic() (files staticFiles) {
	files.content = make(map[string][]byte)
	hash := sha256.New()
	err := fs.WalkDir(pageFiles, "page/static", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := pageFiles.ReadFile(file)
		files.content[path.Base(file)] = content
		fmt.Fprintf(hash, "%s %d\n%s", file, len(content), content)
		return err
	})
	if err != nil {
		panic(err)
	}
	files.version = hex.EncodeToString(hash.Sum(nil)[:8])
	return files
}

// static answers with a static file. The address of another version's is for pages of other replicas.
func (s *Server) static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, ok := static.content[name]
	if !ok {
		r.Context().Value(answerKey{}).(*answer).problem(problem(noSuchPath, "there is no such file"))
		return
	}
	var media string // the machine's own idea of it does not count
	switch path.Ext(name) {
	case ".js":
		media = "text/javascript; charset=utf-8"
	case ".css":
		media = "text/css; charset=utf-8"
	case ".svg":
		media = "image/svg+xml"
	default:
		media = "text/plain; charset=utf-8"
	}
	pageHeaders(w.Header())
	w.Header().Set("Content-Type", media)
	if r.PathValue("version") == static.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(content)
}
