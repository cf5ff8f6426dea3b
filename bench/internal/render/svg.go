package render

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The layout of a chart in pixels.
const (
	chartWidth   = 520
	plotHeight   = 240
	marginLeft   = 64
	marginRight  = 16
	marginTop    = 32
	marginBottom = 44
	legendLine   = 16
	plotWidth    = chartWidth - marginLeft - marginRight
)

// colors tell lines apart; where they come again, dashes do.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// writeCharts draws charts one beside the other, in rows of the given number.
func writeCharts(w io.Writer, charts []Chart, columns int) error {
	columns = max(1, min(columns, len(charts)))
	height := 0
	for i := range charts {
		height = max(height, charts[i].height())
	}
	rows := (len(charts) + columns - 1) / columns
	d := &drawing{}
	d.line(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`,
		columns*chartWidth, rows*height)
	d.line(`<rect width="100%%" height="100%%" fill="white"/>`)
	for i := range charts {
		d.line(`<g transform="translate(%d %d)">`, i%columns*chartWidth, i/columns*height)
		d.chart(&charts[i])
		d.line(`</g>`)
	}
	d.line(`</svg>`)
	_, err := io.WriteString(w, d.String())
	return err
}

func (c *Chart) height() int {
	return marginTop + plotHeight + marginBottom + legendLine*len(c.Lines)
}

// drawing is an SVG file in the making.
type drawing struct{ strings.Builder }

func (d *drawing) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, attributes, text string) {
	d.line(`<text x="%.1f" y="%.1f" %s>%s</text>`, x, y, attributes, escape(text))
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}

func (d *drawing) chart(c *Chart) {
	scale := c.verticalAxis()
	d.text(marginLeft, 18, `font-size="13" font-weight="bold"`, c.Title)
	d.grid(c, scale)
	for i := range c.Lines {
		d.series(c, scale, i)
		d.legend(c, i)
	}
}

func (d *drawing) grid(c *Chart, scale axis) {
	for _, v := range scale.ticks() {
		y := vertical(scale, v)
		d.line(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, marginLeft, y, marginLeft+plotWidth, y)
		d.text(marginLeft-6, y+4, `text-anchor="end"`, formatTick(v))
	}
	for i, name := range c.Categories {
		d.text(horizontal(c, i), marginTop+plotHeight+16, `text-anchor="middle"`, name)
	}
	d.text(marginLeft+plotWidth/2, marginTop+plotHeight+34, `text-anchor="middle"`, c.XLabel)
	d.line(`<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`, marginTop+plotHeight/2, escape(c.YLabel))
	d.line(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888"/>`, marginLeft, marginTop, plotWidth, plotHeight)
}

// formatTick writes thousands and millions short.
func formatTick(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func (d *drawing) series(c *Chart, scale axis, index int) {
	var points []string
	for i, v := range c.Lines[index].Values {
		if !drawable(v) || i >= len(c.Categories) {
			continue
		}
		x, y := horizontal(c, i), vertical(scale, v)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		d.line(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x, y, color(index))
	}
	d.line(`<polyline points="%s" fill="none" %s/>`, strings.Join(points, " "), stroke(index))
}

func (d *drawing) legend(c *Chart, index int) {
	y := float64(marginTop + plotHeight + marginBottom + legendLine*index + 4)
	d.line(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" %s/>`, marginLeft, y, marginLeft+28, y, stroke(index))
	d.text(marginLeft+36, y+4, "", c.Lines[index].Name)
}

func color(index int) string { return colors[index%len(colors)] }

func stroke(index int) string {
	attributes := fmt.Sprintf(`stroke="%s" stroke-width="2"`, color(index))
	if index >= len(colors) {
		attributes += fmt.Sprintf(` stroke-dasharray="%d 3"`, 3*(index/len(colors)))
	}
	return attributes
}

// horizontal is the place of a category: each has a strip of the same width.
func horizontal(c *Chart, index int) float64 {
	return marginLeft + plotWidth*(float64(index)+0.5)/float64(len(c.Categories))
}

func vertical(scale axis, v float64) float64 {
	return marginTop + plotHeight*(1-scale.place(v))
}
