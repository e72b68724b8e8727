"""Pages of engines that cannot run without a GPU, written after their source and documentation.

Templates: `{n}` requests have finished, in `{time}` seconds, of which each queued for one.
"""

from __future__ import annotations

TRTLLM = """\
trtllm_num_requests_running{{model_name="m",engine_type="trtllm",pid="1"}} 6
trtllm_num_requests_running{{model_name="m",engine_type="trtllm",pid="2"}} 5
trtllm_num_requests_waiting{{model_name="m",engine_type="trtllm",pid="1"}} 2
trtllm_max_num_active_requests{{model_name="m",engine_type="trtllm",pid="1"}} 64
trtllm_kv_cache_utilization{{model_name="m",engine_type="trtllm",pid="1"}} 0.25
trtllm_kv_cache_max_blocks{{model_name="m",engine_type="trtllm",pid="1"}} 100
trtllm_kv_cache_tokens_per_block{{model_name="m",engine_type="trtllm",pid="1"}} 32
trtllm_request_success_total{{model_name="m",engine_type="trtllm",finished_reason="stop"}} {n}
trtllm_e2e_request_latency_seconds_sum{{model_name="m",engine_type="trtllm"}} {time}
trtllm_e2e_request_latency_seconds_count{{model_name="m",engine_type="trtllm"}} {n}
trtllm_request_queue_time_seconds_sum{{model_name="m",engine_type="trtllm"}} {n}
trtllm_request_queue_time_seconds_count{{model_name="m",engine_type="trtllm"}} {n}
"""
BACKEND = """\
nv_trt_llm_request_metrics{{model="a",request_type="waiting",version="1"}} 3
nv_trt_llm_request_metrics{{model="a",request_type="context",version="1"}} 1
nv_trt_llm_request_metrics{{model="a",request_type="scheduled",version="1"}} 4
nv_trt_llm_request_metrics{{model="a",request_type="max",version="1"}} 512
nv_trt_llm_request_metrics{{model="a",request_type="active",version="1"}} 7
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="fraction",model="a",version="1"}} 0.4
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="tokens_per",model="a",version="1"}} 64
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="a",version="1"}} 100
nv_inference_request_success{{model="a",version="1"}} {n}
nv_inference_request_duration_us{{model="a",version="1"}} {time}000000
nv_inference_queue_duration_us{{model="a",version="1"}} {n}000000
nv_inference_count{{model="a",version="1"}} {n}
nv_inference_exec_count{{model="a",version="1"}} {n}
nv_inference_request_success{{model="ensemble",version="1"}} {time}
nv_inference_request_duration_us{{model="ensemble",version="1"}} {time}000000
nv_inference_queue_duration_us{{model="ensemble",version="1"}} 0
nv_inference_request_summary_us{{model="a",version="1",quantile="0.5"}} Nan
"""
TGI = """\
tgi_batch_current_size 6
tgi_queue_size 2
tgi_request_count 900
tgi_request_success {n}
tgi_request_failure{{err="overloaded"}} {n}
tgi_request_failure{{err="validation"}} 77
tgi_request_input_length_sum {time}
tgi_request_generated_tokens_sum {time}
tgi_request_inference_duration_sum {time}
tgi_request_inference_duration_count {n}
tgi_request_queue_duration_sum {n}
tgi_request_queue_duration_count {n}
"""
KSERVE = """\
queue_average_concurrent_requests{{destination_configuration="m"}} 6
revision_queue_depth{{configuration_name="m"}} 8
revision_request_count{{configuration_name="m",response_code="200"}} 55
revision_request_count{{configuration_name="m",response_code="503"}} {n}
revision_app_request_count{{configuration_name="m",response_code="200"}} {n}
revision_app_request_latencies_sum{{configuration_name="m",response_code="200"}} {time}000
revision_app_request_latencies_count{{configuration_name="m",response_code="200"}} {n}
revision_request_latencies_sum{{configuration_name="m",response_code="200"}} {time}000
revision_request_latencies_count{{configuration_name="m",response_code="200"}} {n}
"""
LMDEPLOY = """\
lmdeploy:num_requests_running{{engine="0",model_name="m"}} 6
lmdeploy:num_requests_running{{engine="1",model_name="m"}} 1
lmdeploy:num_requests_waiting{{engine="0",model_name="m"}} 2
lmdeploy:gpu_cache_usage_perc{{engine="0",model_name="m"}} 0.25
lmdeploy:gpu_cache_usage_perc{{engine="1",model_name="m"}} 0.75
lmdeploy:prompt_tokens_total{{engine="0",model_name="m"}} {time}
lmdeploy:generation_tokens_total{{engine="0",model_name="m"}} {time}
lmdeploy:request_success_total{{engine="0",model_name="m",finished_reason="stop"}} {n}
lmdeploy:iteration_tokens_total_sum{{engine="0",model_name="m"}} 1
lmdeploy:request_inference_time_seconds_sum{{engine="0",model_name="m"}} {time}
lmdeploy:request_inference_time_seconds_count{{engine="0",model_name="m"}} {n}
lmdeploy:request_queue_time_seconds_sum{{engine="0",model_name="m"}} {n}
lmdeploy:request_queue_time_seconds_count{{engine="0",model_name="m"}} {n}
"""
DYNAMO = """\
dynamo_frontend_inflight_requests{{model="m"}} 8
dynamo_frontend_queued_requests{{model="m"}} 2
dynamo_frontend_model_max_num_seqs{{model="m"}} 64
dynamo_frontend_model_total_kv_blocks{{model="m"}} 100
dynamo_frontend_model_kv_cache_block_size{{model="m"}} 32
dynamo_frontend_input_sequence_tokens_sum{{model="m"}} {time}
dynamo_frontend_output_sequence_tokens_sum{{model="m"}} {time}
dynamo_frontend_requests_total{{model="m",status="success"}} {n}
"""
