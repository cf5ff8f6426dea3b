// SPDX-License-Identifier: Apache-2.0

// Package similar finds the word that a misspelled one was probably meant to be.
package similar

// Closest returns the first of the known names that name is most probably meant to be, "" if none
// is similar.
func Closest(name string, known []string) string {
	best, least := "", 1+len(name)/3
	for _, k := range known {
		if d := EditDistance(name, k); d <= least {
			best, least = k, d-1
		}
	}
	return best
}

// EditDistance returns the Levenshtein distance of two texts, in bytes.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
