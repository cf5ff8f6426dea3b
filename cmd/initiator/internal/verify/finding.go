package verify

import "fmt"

// Kind is the way in which a block is wrong.
type Kind string

const (
	// Lost is a block that was written, but holds no data of this run.
	Lost Kind = "lost"
	// Stale is a block that holds what an earlier pass has written.
	Stale Kind = "stale"
	// Torn is a block whose beginning and end are from different writes.
	Torn Kind = "torn"
	// Misplaced is a block that holds data written to another place.
	Misplaced Kind = "misplaced"
	// Corrupt is a block that holds what nobody has written.
	Corrupt Kind = "corrupt"
)

// Kinds are all of them.
var Kinds = []Kind{Lost, Stale, Torn, Misplaced, Corrupt}

// Finding is a block that is wrong.
type Finding struct {
	Kind   Kind   `json:"kind"`
	Offset uint64 `json:"offset_bytes"` // of the block in the volume
	Queue  int    `json:"queue"`
	Pass   uint32 `json:"pass"` // that read it
	// ExpectedGeneration is the pass that last wrote the block.
	ExpectedGeneration uint32 `json:"expected_generation"`
	// Found is the block's own header, if it has one.
	Found *FoundHeader `json:"found,omitempty"`
	// FirstWrongByte and LastWrongByte are where the block differs from what
	// it must be. A torn block is torn at TornAtByte.
	FirstWrongByte int    `json:"first_wrong_byte"`
	LastWrongByte  int    `json:"last_wrong_byte"`
	TornAtByte     int    `json:"torn_at_byte,omitempty"`
	Detail         string `json:"detail"`
}

// FoundHeader is the header of a wrong block.
type FoundHeader struct {
	Run           string `json:"run"`
	Offset        uint64 `json:"offset_bytes"`
	Generation    uint32 `json:"generation"`
	ChecksumValid bool   `json:"checksum_valid"`
}

// String is the finding in a sentence.
func (f *Finding) String() string {
	text := fmt.Sprintf("%s block at offset %d (queue %d, pass %d): expected generation %d, %s",
		f.Kind, f.Offset, f.Queue, f.Pass, f.ExpectedGeneration, f.Detail)
	if f.Found != nil {
		text += fmt.Sprintf("; its header says run %s, offset %d, generation %d, checksum %s",
			f.Found.Run, f.Found.Offset, f.Found.Generation, valid(f.Found.ChecksumValid))
	}
	return text
}

func valid(yes bool) string {
	if yes {
		return "valid"
	}
	return "wrong"
}

func runName(run uint64) string { return fmt.Sprintf("%016x", run) }
