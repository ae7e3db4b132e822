// Package web is Lapse over HTTP: the API and its client, and the operators' page at /. The document at /openapi.json
// describes every operation of the API, and what is said in it is checked on every request.
//
// Bodies are JSON: money in minor units with its currency, times in RFC 3339 and UTC, durations as Go
// writes them ("30m"). What an operation refuses is answered with a problem (RFC 9457,
// https://www.rfc-editor.org/rfc/rfc9457) of a type that stays the same for good: see [Problem]. An export
// that fails when a part of it is out already is cut instead: its end never comes.
//
// The page works without JavaScript, and asks nothing of other addresses. Where there are tokens, whoever has one
// signs in with it for 12 hours, or until nothing was asked for in an hour. Every replica with the same tokens accepts the
// session, which ends with the token; the API does not take it. From one address one can fail to sign in 10 times at
// once, and then every 6 seconds; behind a proxy all have its address. A proxy that ends TLS should set
// X-Forwarded-Proto, so that browsers send the session over TLS alone.
//
// Two things are answered by net/http itself, in plain text, before a request reaches this package: a
// header of more than 32 KiB (431), and a request that is no HTTP or has a path that cannot be decoded
// (400).
package web
