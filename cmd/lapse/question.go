package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// yesFlag is for scripts.
type yesFlag struct {
	Yes bool `short:"y" env:"-" help:"Do not ask."`
}

var errDeclined = errors.New("nothing was done")

// mayAsk is the error of a question that nobody would answer.
func (f yesFlag) mayAsk(to console) error {
	if f.Yes || isTerminal(to.In) {
		return nil
	}
	return fmt.Errorf("%w: standard input is no terminal, so nobody can be asked: give --yes", errUsage)
}

// confirm is nil if the answer is yes.
func (f yesFlag) confirm(ctx context.Context, to console, question string) error {
	if f.Yes {
		return nil
	}
	fmt.Fprintf(to.Err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // which nobody waits for if the question is interrupted
		line, _ := bufio.NewReader(to.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(to.Err)
		return fmt.Errorf("%w: %w", errDeclined, ctx.Err())
	case text := <-answer:
		if text != "y" && text != "yes" {
			return errDeclined
		}
		return nil
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// lettersOf is how many they are, in words.
func lettersOf(n int64) string {
	if n == 1 {
		return "1 letter"
	}
	return fmt.Sprintf("%d letters", n)
}
