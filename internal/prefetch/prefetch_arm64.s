// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func lines(first *byte, count int)
TEXT ·lines(SB), NOSPLIT, $0-16
	MOVD first+0(FP), R0
	MOVD count+8(FP), R1
next:
	PRFM (R0), PLDL1KEEP
	ADD $64, R0
	SUBS $1, R1
	BNE next
	RET
