// SPDX-License-Identifier: Apache-2.0

package functions_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// preprocess returns a source of the library with all macros expanded.
func preprocess(t *testing.T, path string) string {
	t.Helper()
	generated := t.TempDir() // of cgo: only calls of the core need it
	if err := os.WriteFile(filepath.Join(generated, "_cgo_export.h"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("gcc", "-E", "-P", "-std=gnu11", "-I", library, "-I",
		library+"/include", "-I", generated, path)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return string(output)
}

// refuser is the function of the library that logs why a call is refused.
const refuser = "emu_refuse"

// definition is a function of C.
type definition struct {
	name       string
	parameters []string // their names
	statements []string // those of the body; a block is one, too, and empty
	body       string
}

// refusal is how a function refuses all calls.
type refusal struct {
	reason    string
	parameter int // that is the reason, or -1
}

// analyze returns the functions that a source defines, each with the reason for which it refuses
// all calls, or "". Such a function ends with a call of the refuser, or of a function of the source
// that ends so, and does not succeed before.
func analyze(source string) map[string]string {
	definitions := definitionsOf(source)
	refusers := map[string]refusal{refuser: {parameter: 1}}
	reasons := make(map[string]string)
	// A function is defined before it is called.
	for _, d := range definitions {
		reasons[d.name] = ""
		if d.name == refuser {
			continue
		}
		if found, ok := d.refusal(source, refusers); ok {
			refusers[d.name] = found
			reasons[d.name] = found.reason
		}
	}
	return reasons
}

var success = regexp.MustCompile(`\breturn\s+DOCA_SUCCESS\b`)

func (d *definition) refusal(source string, refusers map[string]refusal) (refusal, bool) {
	statements := d.statements
	if n := len(statements); n > 1 && statements[n-1] == "return ((void *)0)" {
		statements = statements[:n-1]
	}
	if len(statements) == 0 || success.MatchString(d.body) {
		return refusal{}, false
	}
	last := statements[len(statements)-1]
	if strings.Contains(last, "DOCA_SUCCESS") {
		return refusal{}, false
	}
	for name, called := range refusers {
		at := regexp.MustCompile(`\b` + name + `\s*\(`).FindStringIndex(last)
		if at == nil {
			continue
		}
		if called.parameter < 0 {
			return called, true
		}
		arguments := splitArguments(last[at[1]:])
		if called.parameter >= len(arguments) {
			continue
		}
		reason := strings.Trim(arguments[called.parameter], " ()")
		if i := slices.Index(d.parameters, reason); i >= 0 {
			return refusal{parameter: i}, true
		}
		return refusal{reason: textOf(source, reason), parameter: -1}, true
	}
	return refusal{}, false
}

const literals = `((?:"(?:[^"\\]|\\.)*"\s*)+)`

var (
	literal = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	onlyWs  = regexp.MustCompile(`\s+`)
)

// textOf returns the text of an expression: literals, or the name of a constant.
func textOf(source, expression string) (text string) {
	if !strings.HasPrefix(expression, `"`) {
		constant := regexp.MustCompile(`\b` + regexp.QuoteMeta(expression) + `(?:\[\])?\s*=\s*` +
			literals)
		match := constant.FindStringSubmatch(source)
		if match == nil {
			return expression
		}
		expression = match[1]
	}
	for _, quoted := range literal.FindAllString(expression, -1) {
		part, err := strconv.Unquote(quoted)
		if err != nil {
			return expression
		}
		text += part
	}
	return text
}

// splitArguments splits what follows the parenthesis of a call, up to the other one.
func splitArguments(text string) (arguments []string) {
	depth, start := 0, 0
	for i, end := 0, 0; i < len(text); i = end {
		end = next(text, i)
		switch text[i] {
		case '(':
			depth++
		case ')':
			if depth == 0 {
				return append(arguments, strings.TrimSpace(text[start:i]))
			}
			depth--
		case ',':
			if depth == 0 {
				arguments = append(arguments, strings.TrimSpace(text[start:i]))
				start = end
			}
		}
	}
	return arguments
}

// next returns the index behind the character, or behind the literal, at i.
func next(text string, i int) int {
	quote := text[i]
	if quote != '"' && quote != '\'' {
		return i + 1
	}
	for i++; i < len(text) && text[i] != quote; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return min(i+1, len(text))
}

var (
	called     = regexp.MustCompile(`\b([a-z]\w*)\s*\(`)
	identifier = regexp.MustCompile(`(\w+)\W*$`)
)

func definitionsOf(source string) (all []*definition) {
	depth, start, open := 0, 0, 0
	for i, end := 0, 0; i < len(source); i = end {
		end = next(source, i)
		switch source[i] {
		case ';':
			if depth == 0 {
				start = end
			}
		case '{':
			if depth == 0 {
				open = i
			}
			depth++
		case '}':
			depth--
			if depth > 0 {
				break
			}
			head := strings.TrimSpace(source[start:open])
			if at := called.FindStringSubmatchIndex(head); at != nil && head[len(head)-1] == ')' {
				d := &definition{name: head[at[2]:at[3]], body: source[open+1 : i]}
				for _, parameter := range splitArguments(head[at[1]:]) {
					if match := identifier.FindStringSubmatch(parameter); match != nil {
						d.parameters = append(d.parameters, match[1])
					}
				}
				d.statements = statementsOf(d.body)
				all = append(all, d)
				start = end
			}
		}
	}
	return all
}

func statementsOf(body string) (all []string) {
	depth, start := 0, 0
	for i, end := 0, 0; i < len(body); i = end {
		end = next(body, i)
		switch body[i] {
		case '{':
			depth++
		case '}':
			depth--
			if depth == 0 {
				all, start = append(all, ""), end
			}
		case ';':
			if depth == 0 {
				statement := onlyWs.ReplaceAllString(body[start:i], " ")
				all, start = append(all, strings.TrimSpace(statement)), end
			}
		}
	}
	return all
}

func TestRefusalsAreFound(t *testing.T) {
	const source = `
struct s { int a; };
static const char no_x[] = "there is no " "x", no_y[] = "there is no y: { \"";
int declared(int a);
doca_error_t emu_refuse(const char *function, const char *reason)
{
	return DOCA_ERROR_NOT_SUPPORTED;
}
static doca_error_t check(struct s *s, const char *reason, const char *function)
{
	if (s == ((void *)0)) {
		return DOCA_ERROR_INVALID_VALUE;
	}
	return emu_refuse(function, reason);
}
static doca_error_t no(const char *function) { return emu_refuse(function, (no_x)); }
doca_error_t emu_doca_plain(void) { return emu_refuse(__func__, "it is " "plain"); }
void *emu_doca_object(int (*f)(int), void *o)
{
	(void)emu_refuse(__func__, ("o"));
	return ((void *)0);
}
doca_error_t emu_doca_checked(struct s *s) { return check(s, no_y, __func__); }
doca_error_t emu_doca_chosen(struct s *s) { return s ? no(__func__) : DOCA_ERROR_INVALID_VALUE; }
doca_error_t emu_doca_sometimes(int a) { if (a) return DOCA_SUCCESS; return no(__func__); }
doca_error_t emu_doca_either(int a) { return a ? DOCA_SUCCESS : no(__func__); }
doca_error_t emu_doca_early(int a) { if (a) { return no(__func__); } return run(a); }
doca_error_t emu_doca_works(void) { return DOCA_SUCCESS; }
`
	want := map[string]string{
		"emu_doca_plain": "it is plain", "emu_doca_object": "o",
		"emu_doca_checked": `there is no y: { "`, "emu_doca_chosen": "there is no x",
		"emu_doca_sometimes": "", "emu_doca_either": "", "emu_doca_early": "",
		"emu_doca_works": "",
	}
	got := analyze(source)
	for name, reason := range want {
		if found, ok := got[name]; !ok || found != reason {
			t.Errorf("%s: %q, %v, expected %q", name, found, ok, reason)
		}
	}
	if _, ok := got["declared"]; ok {
		t.Error("a declaration is taken for a definition")
	}
}
