// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func repeatMove(dst, src *byte, count int)
TEXT ·repeatMove(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ count+16(FP), CX
	REP; MOVSB
	RET

// func moveAhead(dst, src, next *byte, count int)
TEXT ·moveAhead(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ next+16(FP), DX
	MOVQ count+24(FP), CX
step:
	PREFETCHT0 (DX)
	PREFETCHT0 64(DX)
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	ADDQ $128, DX
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JNZ step
	VZEROUPPER
	RET
