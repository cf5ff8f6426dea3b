package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// AddRelayFlags adds the flags of zc-relay, which with a single channel need
// no file. LoadRelay takes them.
func AddRelayFlags(f *pflag.FlagSet) { addFlags(f, describeSection("", "", DefaultRelay().describe)) }

// AddTargetFlags adds the flags of the target. LoadTarget takes them.
func AddTargetFlags(f *pflag.FlagSet) { addFlags(f, describeSection("", "", DefaultTarget().describe)) }

func addFlags(f *pflag.FlagSet, root *node) {
	root.flags("", func(_ string, n *node) {
		flag := f.VarPF(flagValue(n.value), n.flag, n.short, n.doc)
		if n.value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	})
	for _, n := range root.children {
		if n.list != nil && n.flag != "" {
			f.StringArray(n.flag, nil, n.doc)
		}
	}
}

// flags calls visit for every key that has a flag. In lists they are those of
// the elements, under the number anyElement.
func (n *node) flags(path string, visit func(path string, n *node)) {
	if n.value != nil && n.flag != "" {
		visit(path, n)
	}
	for _, c := range n.children {
		c.flags(join(path, c.key), visit)
	}
	if n.list != nil {
		n.list.prototype().flags(join(path, anyElement), visit)
	}
}

// flagValue makes flags of lists repeatable.
func flagValue(v Value) pflag.Value {
	if isListType(v.Type()) {
		return &repeated{Value: v}
	}
	return v
}

// repeated collects what the occurrences of a flag say.
type repeated struct {
	Value
	texts []string
}

// Set implements pflag.Value.
func (r *repeated) Set(text string) error {
	texts := append(slices.Clone(r.texts), text)
	if err := r.Value.Set(strings.Join(texts, ",")); err != nil {
		return err
	}
	r.texts = texts
	return nil
}

// isListType tells whether values of a type are lists, whose text has commas.
func isListType(kind string) bool { return kind == listType || kind == cpusType }
