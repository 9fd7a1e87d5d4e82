"""Lines as the versions of oneDNN write them."""

CONVOLUTION_SHAPE = "mb2_ic16oc16_ih7oh7kh5sh1dh0ph2_iw7ow7kw5sw1dw0pw2"

SPELLINGS = {
    # 1.0 and 1.1 have no attributes
    "1.0": "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:aBcd8b:f0 "
    "wei_f32::blocked:ABcd8b8a:f0 bia_f32::blocked:a:f0 dst_f32::blocked:aBcd8b:f0,"
    f"alg:convolution_direct,{CONVOLUTION_SHAPE},0.25",
    "1.8": "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:aBcd8b:f0 "
    "wei_f32::blocked:ABcd8b8a:f0 bia_f32::blocked:a:f0 dst_f32::blocked:aBcd8b:f0,,"
    f"alg:convolution_direct,{CONVOLUTION_SHAPE},0.25",
    "2.6 with time": "onednn_verbose,1795230198093.044922,exec,cpu,convolution,jit:avx2,"
    "forward_training,src_f32::blocked:aBcd8b:f0 wei_f32::blocked:ABcd8b8a:f0 "
    "bia_f32::blocked:a:f0 dst_f32::blocked:aBcd8b:f0,,alg:convolution_direct,"
    f"{CONVOLUTION_SHAPE},0.25",
    "3.1": "onednn_verbose,primitive,exec,cpu,convolution,jit:avx2,forward_training,"
    "src_f32::blocked:aBcd8b::f0 wei_f32::blocked:ABcd8b8a::f0 bia_f32::blocked:a::f0 "
    f"dst_f32::blocked:aBcd8b::f0,,alg:convolution_direct,{CONVOLUTION_SHAPE},0.25",
    "3.2 with time": "onednn_verbose,v0,1693533460272.561035,primitive,exec,cpu,convolution,"
    "jit:avx2,forward_training,src_f32::blocked:aBcd8b::f0 wei_f32::blocked:ABcd8b8a::f0 "
    "bia_f32::blocked:a::f0 dst_f32::blocked:aBcd8b::f0,,alg:convolution_direct,"
    f"{CONVOLUTION_SHAPE},0.25",
    "3.13": "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,"
    "src:f32::blocked:aBcd8b::f0 wei:f32::blocked:ABcd8b8a::f0 bia:f32::blocked:a::f0 "
    f"dst:f32::blocked:aBcd8b::f0,,alg:convolution_direct,{CONVOLUTION_SHAPE},0.25",
}
"""The same convolution, in the spelling of each version."""

OTHERS = {
    "graph": "onednn_verbose,v1,graph,exec,cpu,100002,sdp,matmul_qk;softmax;matmul_v,,"
    "in0_f16:1:strided:undef:1x16x384x64:393216s24576s64s1 out0_f16:9:strided:undef:1x16x384x64:"
    "393216s24576s64s1,fpm:strict,sdp_decomp_kernel_t,dnnl_backend,1.5",
    "graph's own kernel": "onednn_verbose,v1,graph,exec,gpu,_gen_index(_gen_index),"
    "18446744073709551615,attrs:{axis:2},inputs:{f32:102:strided:undef:1x16x384x384:1},"
    "outputs:{s32:1021:strided:undef:1x16x384x384:1},0.193115",
    "micro-kernel": "onednn_verbose,v1,ukernel,exec,cpu,brgemm,,undef,src:f32::blocked:ab::f0 "
    "wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,bs:4 beta:0,8x64:64x32,0.125",
    "transform": "onednn_verbose,v1,ukernel,exec,cpu,transform,pack_B,undef,"
    "src:bf16::blocked:ab::f0 dst:bf16::blocked:ab::f0,,,64x32,0.0625",
    "gemm call": "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0 "
    "wei_f32::blocked:ba:f0 dst_f32::blocked:ab:f0,lda:80 ,,32x64:64x16,0.5",
    "attention, 3.7": "onednn_verbose,v1,primitive,exec,gpu:0,sdpa,ocl:micro:any,,"
    "query:f16:1x2x384x128,key:f16:1x2x128x384:abdc,val:f16:1x2x384x128,msk:causal,0.75",
    "attention, 3.9": "onednn_verbose,v1,primitive,exec,gpu:0,sdpa,ocl:micro:any,undef,"
    "query:f16::blocked:abcd::f0 key:s8::blocked:abcd::f0 val:s8::blocked:abcd::f0 "
    "dst:f16::blocked:abcd::f0,attr-scales:kq:11:f16+vs:7:f16,,"
    "1x2x384x128:1x2x128x384:1x2x384x128,0.75",
    "between devices": "onednn_verbose,v1,primitive,exec,cpu2gpu:0,reorder,jit:ir,undef,"
    "src:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,8x8,0.5",
    "masked bias": "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx2,undef,"
    "src:f32::blocked:ab::f0 wei:f32:a:blocked:BA16a64b::f0 bia:f32::blocked:ab::f0_mask2 "
    "dst:f32::blocked:ab::f0,attr-scratchpad:user attr-post-ops:eltwise_relu,,2x3:3x5,0.5",
    "strides": "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,"
    "src:f32::blocked:acdb:150528x1x672x3:f0 dst:s8:p:blocked:Acdb16a::f8:s8m1,,,2x3x224x224,2e-05",
    "1.x product": "dnnl_verbose,exec,cpu,matmul,gemm:jit,undef,src_bf16::blocked:abc:f0 "
    "wei_bf16::blocked:bac:f0 dst_bf16::blocked:abc:f0,,,b1408m52n64k52,0.417969",
}
"""Rare executions."""

UNLIKE_OTHERS = (
    "onednn_verbose,v1,info,oneDNN v3.13.3 (commit d23923d)",
    "onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:224",
    "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with float16, Intel DL Boost and Intel AMX",
    "onednn_verbose,v1,info,gpu,engine,0,name:Intel(R) Data Center GPU Max 1100,binary:enabled",
    "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,exec_time",
    "onednn_verbose,v1,common,info,filter format is enabled, hit components: matmul",
    "onednn_verbose,v1,primitive,create:dispatch,matmul,cpu,matmul,brg:avx512_core,undef,src:u8:a:"
    "any:any::f0 wei:s8:a:any:any::f0 dst:f32:a:any:any::f0,,,25x25:25x25,unsupported isa,m.cpp:97",
    "onednn_verbose,primitive,create:check,matmul,dimension src:1 is inconsistent,matmul.cpp:144",
    "onednn_verbose,primitive,exec:check,primitive,unused execution argument (4113),types.cpp:74",
    "onednn_verbose,v1,primitive,error,cpu,jit,out of memory,x.cpp:3",
    "onednn_verbose,v1,cpu,debuginfo,platform,cache,L1d:32KB,L2:1024KB,L3:35MB(2cores),smt:1",
    "onednn_verbose,v1,cpu,acl,unsupported: only Ab4a, Ab8a destinations supported",
    "onednn_verbose,cpu,acl,unsupported: attr must have default values",
    "onednn_verbose,cpu,error,acl,failed to configure",
    "onednn_verbose,v1,primitive,exec:external,CpuGemmAssemblyWrapperKernel/a64_sgemm,2.5",
    "onednn_verbose,v1,primitive,create:start,cpu,inner_product,brg_matmul:avx2,undef,,,,mb2ic1oc1",
    "onednn_verbose,v1,primitive,create_nested:cache_miss,cpu,matmul,brg_matmul:avx2,undef,"
    "src:f32::blocked:ab::f0 wei:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,2x1:1x1,0.526123",
    "onednn_verbose,v1,graph,compile:cache_miss,cpu,100002,sdp,matmul;softmax,,in0_f16:1:strided:"
    "undef:1x16:1,fpm:strict,sdp_decomp_kernel_t,dnnl_backend,1.5",
)
"""Valid lines that are not executions."""

DAMAGED = (
    "onednn_verbose,v1,primitive,exec,cpu,convo",
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blo",
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,8x8,fast",
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,8x8,nan",
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,8x8,-1",
    "onednn_verbose,v1,primitive,exec,tpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,8x8,0.5",
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,64",
    "onednn_verbose,v1,primitive,exec,cpu,softmax,jit,undef,src:f32::blocked:ab::f0,,axis:1,64",
    "onednn_verbose,v9,primitive,dream,cpu,reorder,0.5",
    "onednn_verbose,v1,graph,exec,cpu,1,sdp,a,0.5",
    "onednn_verbose,",
)
"""Lines that must be counted and shown, and be in no table."""
