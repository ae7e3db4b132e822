// Package web is Lapse over HTTP: the API and its client. The document at /openapi.json describes every
// operation, and what is said in it is checked on every request.
//
// Bodies are JSON: money in minor units with its currency, times in RFC 3339 and UTC, durations as Go
// writes them ("30m"). What an operation refuses is answered with a problem (RFC 9457,
// https://www.rfc-editor.org/rfc/rfc9457) of a type that stays the same for good: see [Problem].
//
// Two things are answered by net/http itself, in plain text, before a request reaches this package: a
// header of more than 32 KiB (431), and a request that is no HTTP or has a path that cannot be decoded
// (400).
package web
