// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

type object = map[string]any

// schema returns the JSON Schema of a section or a value in a document.
func (n *node) schema() object {
	if n.value == nil {
		properties := object{}
		for _, c := range n.children {
			properties[c.key] = c.schema()
		}
		return object{"type": "object", "description": n.doc, "properties": properties}
	}
	s := object{"description": n.doc}
	switch kind := n.value.Type(); {
	case kind == "bool":
		s["type"] = "boolean"
	case kind == cpusType:
		s["type"], s["items"] = "array", object{"type": "integer", "minimum": 0}
	case kind == listType:
		s["type"], s["items"] = "array", object{"type": "string"}
	case kind == "int" && !slices.ContainsFunc(extremesOf(n.value), isWord):
		s["type"], s["minimum"] = "integer", 0
	default:
		s["type"] = "string"
		if words := n.value.(variable).words; words != nil {
			s["enum"] = words
		}
	}
	return s
}

// TestTheSchemaOfChannelsHasTheKeysOfThisBuild makes docs/schemas/channels.schema.json.
func TestTheSchemaOfChannelsHasTheKeysOfThisBuild(t *testing.T) {
	channel := DefaultChannel()
	item := describeSection("", "A channel that the relay serves.", channel.describe).schema()
	properties := item["properties"].(object)
	text := func(description string, words ...string) object {
		s := object{"type": "string", "description": description}
		if words != nil {
			s["enum"] = words
		}
		return s
	}
	var states []string
	for _, m := range relay.ChannelStates {
		states = append(states, string(m.State))
	}
	for name, schema := range map[string]object{
		"channel": text("DEVICE/REPRESENTOR/NAME, which identifies the channel."),
		"origin": text("Where the channel comes from: the configuration, or 'channel add'. "+
			"Absent for a channel that was removed and waits for its sessions; what else is known "+
			"of it is name, device, representor, and volume.", admin.OriginConfiguration,
			admin.OriginAdministrator),
		"source": text("Where the channel is defined: FILE:LINE, a flag, or the file in which " +
			"the relay keeps what was added."),
		"state":  text("Whether clients can connect.", states...),
		"since":  text("When the channel entered the state, RFC 3339."),
		"reason": text("Why clients cannot connect."),
		"serving_target": text("Address of the target that serves new sessions or was the last " +
			"to do so; absent while it is not known."),
		"link":        text("State of the connection to that target."),
		"link_reason": text("Why that is not ready."),
		"sessions": {"type": "integer", "minimum": 0,
			"description": "Sessions that are open."},
	} {
		properties[name] = schema
	}
	item["required"] = []string{"channel", "name", "device", "representor", "volume", "state",
		"since", "link", "sessions"}
	schema := object{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     "https://github.com/zc-relay/zc-relay/docs/schemas/channels.schema.json",
		"title":   admin.ChannelsSchema,
		"description": "What the admin listener of a relay serves at /channels, and 'zc-relay " +
			"channel list --output json' prints. Within version 1 fields may be added, nothing " +
			"else changes. Sizes, durations, and what may be infinite are text.",
		"type": "object", "required": []string{"schema", "channels"},
		"properties": object{
			"schema": object{"type": "string", "const": admin.ChannelsSchema},
			"channels": object{"type": "array", "items": item,
				"description": "The channels, in the order of the configuration, and then those " +
					"that were added."},
		},
	}
	var content bytes.Buffer
	encoder := json.NewEncoder(&content)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		t.Fatal(err)
	}
	goldentest.Check(t, "../../../docs/schemas/channels.schema.json", content.Bytes())
}
