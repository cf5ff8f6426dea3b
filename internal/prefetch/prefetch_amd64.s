// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func lines(first *byte, count int)
TEXT ·lines(SB), NOSPLIT, $0-16
	MOVQ first+0(FP), AX
	MOVQ count+8(FP), CX
next:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	DECQ CX
	JNZ next
	RET
