package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// writeHistograms writes the latencies of all workers, in nanoseconds, tagged "read" and "write". A
// kind without requests is left out.
func (c *Config) writeHistograms(workers []*worker) error {
	if c.Histograms == nil {
		return nil
	}
	total, now := newRecorder(), time.Now()
	for _, w := range workers {
		total.merge(w.recorder)
	}
	log := hdrhistogram.NewHistogramLogWriter(c.Histograms)
	err := errors.Join(log.OutputLogFormatVersion(), log.OutputStartTime(now.UnixMilli()),
		log.OutputLegend())
	for tag, d := range map[string]*distribution{"read": &total.read, "write": &total.write} {
		if d.count == 0 {
			continue
		}
		d.histogram.SetTag(tag)
		d.histogram.SetStartTimeMs(now.Add(-c.Parameters.Runtime).UnixMilli())
		d.histogram.SetEndTimeMs(now.UnixMilli())
		err = errors.Join(err, log.OutputIntervalHistogram(d.histogram))
	}
	if err != nil {
		return fmt.Errorf("write histograms: %w", err)
	}
	return nil
}
