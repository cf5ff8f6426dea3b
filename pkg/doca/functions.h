/* SPDX-License-Identifier: Apache-2.0 */

// The list of DOCA functions. ZC_DOCA_FUNCTIONS(X) expands to X(need, library, name, return,
// arguments) for each of them, and is the only place that names them: it gives the typed table, the
// look-up, and the names in errors. need is R for a function that the provider cannot do without
// and O for one that it uses if the release has it. name lacks the prefix "doca_".

#ifndef ZC_DOCA_FUNCTIONS_H
#define ZC_DOCA_FUNCTIONS_H

#include "abi.h"

// clang-format off
#define ZC_DOCA_FUNCTIONS(X) \
	ZC_DOCA_COMMON(X) \
	ZC_DOCA_COMCH(X) \
	ZC_DOCA_DMA(X) \
	ZC_DOCA_RDMA(X)

#define ZC_DOCA_COMMON(X) \
	X(R, common, buf_chain_list, doca_error_t, (struct doca_buf *, struct doca_buf *)) \
	X(R, common, buf_dec_refcount, doca_error_t, (struct doca_buf *, uint16_t *)) \
	X(R, common, buf_get_data_len, doca_error_t, (const struct doca_buf *, size_t *)) \
	X(R, common, buf_inventory_buf_get_by_args, doca_error_t, (struct doca_buf_inventory *, struct doca_mmap *, void *, size_t, void *, size_t, struct doca_buf **)) \
	X(R, common, buf_inventory_create, doca_error_t, (size_t, struct doca_buf_inventory **)) \
	X(R, common, buf_inventory_destroy, doca_error_t, (struct doca_buf_inventory *)) \
	X(R, common, buf_inventory_start, doca_error_t, (struct doca_buf_inventory *)) \
	X(R, common, buf_inventory_stop, doca_error_t, (struct doca_buf_inventory *)) \
	X(R, common, buf_reset_data_len, doca_error_t, (struct doca_buf *)) \
	X(R, common, buf_set_data, doca_error_t, (struct doca_buf *, void *, size_t)) \
	X(O, common, ctx_flush_tasks, void, (struct doca_ctx *)) \
	X(R, common, ctx_get_num_inflight_tasks, doca_error_t, (const struct doca_ctx *, size_t *)) \
	X(R, common, ctx_get_state, doca_error_t, (const struct doca_ctx *, uint32_t *)) \
	X(R, common, ctx_get_user_data, doca_error_t, (const struct doca_ctx *, union doca_data *)) \
	X(R, common, ctx_set_state_changed_cb, doca_error_t, (struct doca_ctx *, doca_ctx_state_changed_callback_t)) \
	X(R, common, ctx_set_user_data, doca_error_t, (struct doca_ctx *, union doca_data)) \
	X(R, common, ctx_start, doca_error_t, (struct doca_ctx *)) \
	X(R, common, ctx_stop, doca_error_t, (struct doca_ctx *)) \
	X(R, common, dev_as_devinfo, struct doca_devinfo *, (const struct doca_dev *)) \
	X(R, common, dev_close, doca_error_t, (struct doca_dev *)) \
	X(R, common, dev_open, doca_error_t, (struct doca_devinfo *, struct doca_dev **)) \
	X(R, common, dev_rep_close, doca_error_t, (struct doca_dev_rep *)) \
	X(R, common, dev_rep_open, doca_error_t, (struct doca_devinfo_rep *, struct doca_dev_rep **)) \
	X(R, common, devinfo_create_list, doca_error_t, (struct doca_devinfo ***, uint32_t *)) \
	X(R, common, devinfo_destroy_list, doca_error_t, (struct doca_devinfo **)) \
	X(R, common, devinfo_get_ibdev_name, doca_error_t, (const struct doca_devinfo *, char *, uint32_t)) \
	X(R, common, devinfo_get_iface_name, doca_error_t, (const struct doca_devinfo *, char *, uint32_t)) \
	X(R, common, devinfo_get_pci_addr_str, doca_error_t, (const struct doca_devinfo *, char *)) \
	X(R, common, devinfo_is_equal_pci_addr, doca_error_t, (const struct doca_devinfo *, const char *, uint8_t *)) \
	X(R, common, devinfo_rep_cap_is_filter_net_supported, doca_error_t, (const struct doca_devinfo *, uint8_t *)) \
	X(R, common, devinfo_rep_create_list, doca_error_t, (struct doca_dev *, int, struct doca_devinfo_rep ***, uint32_t *)) \
	X(R, common, devinfo_rep_destroy_list, doca_error_t, (struct doca_devinfo_rep **)) \
	X(R, common, devinfo_rep_get_pci_addr_str, doca_error_t, (const struct doca_devinfo_rep *, char *)) \
	X(O, common, devinfo_rep_get_vuid, doca_error_t, (const struct doca_devinfo_rep *, char *, uint32_t)) \
	X(R, common, devinfo_rep_is_equal_pci_addr, doca_error_t, (const struct doca_devinfo_rep *, const char *, uint8_t *)) \
	X(R, common, error_get_descr, const char *, (doca_error_t)) \
	X(R, common, error_get_name, const char *, (doca_error_t)) \
	X(O, common, log_backend_create_with_fd_sdk, doca_error_t, (int, struct doca_log_backend **)) \
	X(O, common, log_backend_set_sdk_level, doca_error_t, (struct doca_log_backend *, uint32_t)) \
	X(R, common, mmap_add_dev, doca_error_t, (struct doca_mmap *, struct doca_dev *)) \
	X(R, common, mmap_cap_is_create_from_export_pci_supported, doca_error_t, (const struct doca_devinfo *, uint8_t *)) \
	X(R, common, mmap_cap_is_export_pci_supported, doca_error_t, (const struct doca_devinfo *, uint8_t *)) \
	X(R, common, mmap_create, doca_error_t, (struct doca_mmap **)) \
	X(R, common, mmap_create_from_export, doca_error_t, (const union doca_data *, const void *, size_t, struct doca_dev *, struct doca_mmap **)) \
	X(R, common, mmap_destroy, doca_error_t, (struct doca_mmap *)) \
	X(O, common, mmap_enable_thread_safety, doca_error_t, (struct doca_mmap *)) \
	X(R, common, mmap_export_pci, doca_error_t, (struct doca_mmap *, const struct doca_dev *, const void **, size_t *)) \
	X(R, common, mmap_export_rdma, doca_error_t, (struct doca_mmap *, const struct doca_dev *, const void **, size_t *)) \
	X(O, common, mmap_get_mkey, doca_error_t, (struct doca_mmap *, struct doca_dev *, uint32_t *)) \
	X(R, common, mmap_get_memrange, doca_error_t, (const struct doca_mmap *, void **, size_t *)) \
	X(R, common, mmap_set_memrange, doca_error_t, (struct doca_mmap *, void *, size_t)) \
	X(R, common, mmap_set_permissions, doca_error_t, (struct doca_mmap *, uint32_t)) \
	X(R, common, mmap_start, doca_error_t, (struct doca_mmap *)) \
	X(R, common, mmap_stop, doca_error_t, (struct doca_mmap *)) \
	X(R, common, pe_clear_notification, doca_error_t, (struct doca_pe *, doca_notification_handle_t)) \
	X(R, common, pe_connect_ctx, doca_error_t, (struct doca_pe *, struct doca_ctx *)) \
	X(R, common, pe_create, doca_error_t, (struct doca_pe **)) \
	X(R, common, pe_destroy, doca_error_t, (struct doca_pe *)) \
	X(R, common, pe_get_notification_handle, doca_error_t, (const struct doca_pe *, doca_notification_handle_t *)) \
	X(R, common, pe_progress, uint8_t, (struct doca_pe *)) \
	X(R, common, pe_request_notification, doca_error_t, (struct doca_pe *)) \
	X(O, common, pe_set_event_mode, doca_error_t, (struct doca_pe *, uint32_t)) \
	X(R, common, rdma_bridge_get_buf_mkey, doca_error_t, (const struct doca_buf *, struct doca_dev *, uint32_t *)) \
	X(R, common, rdma_bridge_get_dev_pd, doca_error_t, (const struct doca_dev *, struct ibv_pd **)) \
	X(O, common, rdma_bridge_get_mmap_mkey_from_pd, doca_error_t, (const struct doca_mmap *, struct ibv_pd *, uint32_t *)) \
	X(R, common, task_free, void, (struct doca_task *)) \
	X(R, common, task_get_status, doca_error_t, (const struct doca_task *)) \
	X(R, common, task_set_user_data, void, (struct doca_task *, union doca_data)) \
	X(R, common, task_submit, doca_error_t, (struct doca_task *)) \
	X(O, common, task_submit_ex, doca_error_t, (struct doca_task *, uint32_t)) \
	X(O, common, version_runtime, const char *, (void))

#define ZC_DOCA_COMCH(X) \
	X(R, comch, comch_cap_client_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, comch, comch_cap_get_max_clients, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_cap_get_max_msg_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_cap_get_max_name_len, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_cap_get_max_recv_queue_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_cap_get_max_send_tasks, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_cap_server_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, comch, comch_client_as_ctx, struct doca_ctx *, (struct doca_comch_client *)) \
	X(R, comch, comch_client_create, doca_error_t, (struct doca_dev *, const char *, struct doca_comch_client **)) \
	X(R, comch, comch_client_destroy, doca_error_t, (struct doca_comch_client *)) \
	X(R, comch, comch_client_event_consumer_register, doca_error_t, (struct doca_comch_client *, doca_comch_event_consumer_cb_t, doca_comch_event_consumer_cb_t)) \
	X(R, comch, comch_client_event_msg_recv_register, doca_error_t, (struct doca_comch_client *, doca_comch_event_msg_recv_cb_t)) \
	X(R, comch, comch_client_get_client_ctx, struct doca_comch_client *, (const struct doca_comch_connection *)) \
	X(R, comch, comch_client_get_connection, doca_error_t, (const struct doca_comch_client *, struct doca_comch_connection **)) \
	X(R, comch, comch_client_set_max_msg_size, doca_error_t, (struct doca_comch_client *, uint32_t)) \
	X(R, comch, comch_client_set_recv_queue_size, doca_error_t, (struct doca_comch_client *, uint32_t)) \
	X(R, comch, comch_client_task_send_alloc_init, doca_error_t, (struct doca_comch_client *, struct doca_comch_connection *, const void *, uint32_t, struct doca_comch_task_send **)) \
	X(R, comch, comch_client_task_send_set_conf, doca_error_t, (struct doca_comch_client *, doca_comch_task_send_completion_cb_t, doca_comch_task_send_completion_cb_t, uint32_t)) \
	X(R, comch, comch_connection_get_user_data, union doca_data, (const struct doca_comch_connection *)) \
	X(R, comch, comch_connection_set_user_data, doca_error_t, (struct doca_comch_connection *, union doca_data)) \
	X(R, comch, comch_consumer_as_ctx, struct doca_ctx *, (struct doca_comch_consumer *)) \
	X(R, comch, comch_consumer_cap_get_max_buf_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_consumer_cap_get_max_consumers, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_consumer_cap_get_max_imm_data_len, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_consumer_cap_get_max_num_tasks, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_consumer_cap_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, comch, comch_consumer_create, doca_error_t, (struct doca_comch_connection *, struct doca_mmap *, struct doca_comch_consumer **)) \
	X(R, comch, comch_consumer_destroy, doca_error_t, (struct doca_comch_consumer *)) \
	X(R, comch, comch_consumer_get_id, doca_error_t, (const struct doca_comch_consumer *, uint32_t *)) \
	X(R, comch, comch_consumer_set_imm_data_len, doca_error_t, (struct doca_comch_consumer *, uint32_t)) \
	X(R, comch, comch_consumer_task_post_recv_alloc_init, doca_error_t, (struct doca_comch_consumer *, struct doca_buf *, struct doca_comch_consumer_task_post_recv **)) \
	X(R, comch, comch_consumer_task_post_recv_as_task, struct doca_task *, (struct doca_comch_consumer_task_post_recv *)) \
	X(R, comch, comch_consumer_task_post_recv_get_imm_data, const uint8_t *, (const struct doca_comch_consumer_task_post_recv *)) \
	X(R, comch, comch_consumer_task_post_recv_get_imm_data_len, uint32_t, (const struct doca_comch_consumer_task_post_recv *)) \
	X(R, comch, comch_consumer_task_post_recv_get_producer_id, uint32_t, (const struct doca_comch_consumer_task_post_recv *)) \
	X(O, comch, comch_consumer_task_post_recv_set_buf, void, (struct doca_comch_consumer_task_post_recv *, struct doca_buf *)) \
	X(R, comch, comch_consumer_task_post_recv_set_conf, doca_error_t, (struct doca_comch_consumer *, doca_comch_consumer_task_post_recv_completion_cb_t, doca_comch_consumer_task_post_recv_completion_cb_t, uint32_t)) \
	X(R, comch, comch_producer_as_ctx, struct doca_ctx *, (struct doca_comch_producer *)) \
	X(R, comch, comch_producer_cap_get_max_buf_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_producer_cap_get_max_num_tasks, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_producer_cap_get_max_producers, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, comch, comch_producer_cap_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, comch, comch_producer_create, doca_error_t, (struct doca_comch_connection *, struct doca_comch_producer **)) \
	X(R, comch, comch_producer_destroy, doca_error_t, (struct doca_comch_producer *)) \
	X(R, comch, comch_producer_get_id, doca_error_t, (const struct doca_comch_producer *, uint32_t *)) \
	X(R, comch, comch_producer_task_send_alloc_init, doca_error_t, (struct doca_comch_producer *, const struct doca_buf *, uint8_t *, uint32_t, uint32_t, struct doca_comch_producer_task_send **)) \
	X(R, comch, comch_producer_task_send_as_task, struct doca_task *, (struct doca_comch_producer_task_send *)) \
	X(R, comch, comch_producer_task_send_set_conf, doca_error_t, (struct doca_comch_producer *, doca_comch_producer_task_send_completion_cb_t, doca_comch_producer_task_send_completion_cb_t, uint32_t)) \
	X(R, comch, comch_producer_task_send_set_imm_data, void, (struct doca_comch_producer_task_send *, uint8_t *, uint32_t)) \
	X(R, comch, comch_server_as_ctx, struct doca_ctx *, (struct doca_comch_server *)) \
	X(R, comch, comch_server_create, doca_error_t, (struct doca_dev *, struct doca_dev_rep *, const char *, struct doca_comch_server **)) \
	X(R, comch, comch_server_destroy, doca_error_t, (struct doca_comch_server *)) \
	X(R, comch, comch_server_disconnect, doca_error_t, (struct doca_comch_server *, struct doca_comch_connection *)) \
	X(R, comch, comch_server_event_connection_status_changed_register, doca_error_t, (struct doca_comch_server *, doca_comch_event_connection_status_changed_cb_t, doca_comch_event_connection_status_changed_cb_t)) \
	X(R, comch, comch_server_event_consumer_register, doca_error_t, (struct doca_comch_server *, doca_comch_event_consumer_cb_t, doca_comch_event_consumer_cb_t)) \
	X(R, comch, comch_server_event_msg_recv_register, doca_error_t, (struct doca_comch_server *, doca_comch_event_msg_recv_cb_t)) \
	X(R, comch, comch_server_get_server_ctx, struct doca_comch_server *, (const struct doca_comch_connection *)) \
	X(R, comch, comch_server_set_max_msg_size, doca_error_t, (struct doca_comch_server *, uint32_t)) \
	X(R, comch, comch_server_set_recv_queue_size, doca_error_t, (struct doca_comch_server *, uint32_t)) \
	X(R, comch, comch_server_task_send_alloc_init, doca_error_t, (struct doca_comch_server *, struct doca_comch_connection *, const void *, uint32_t, struct doca_comch_task_send **)) \
	X(R, comch, comch_server_task_send_set_conf, doca_error_t, (struct doca_comch_server *, doca_comch_task_send_completion_cb_t, doca_comch_task_send_completion_cb_t, uint32_t)) \
	X(R, comch, comch_task_send_as_task, struct doca_task *, (struct doca_comch_task_send *))

#define ZC_DOCA_DMA(X) \
	X(R, dma, dma_as_ctx, struct doca_ctx *, (struct doca_dma *)) \
	X(R, dma, dma_cap_get_max_num_tasks, doca_error_t, (struct doca_dma *, uint32_t *)) \
	X(R, dma, dma_cap_task_memcpy_get_max_buf_list_len, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, dma, dma_cap_task_memcpy_get_max_buf_size, doca_error_t, (const struct doca_devinfo *, uint64_t *)) \
	X(R, dma, dma_cap_task_memcpy_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, dma, dma_create, doca_error_t, (struct doca_dev *, struct doca_dma **)) \
	X(R, dma, dma_destroy, doca_error_t, (struct doca_dma *)) \
	X(R, dma, dma_task_memcpy_alloc_init, doca_error_t, (struct doca_dma *, const struct doca_buf *, struct doca_buf *, union doca_data, struct doca_dma_task_memcpy **)) \
	X(R, dma, dma_task_memcpy_as_task, struct doca_task *, (struct doca_dma_task_memcpy *)) \
	X(R, dma, dma_task_memcpy_set_conf, doca_error_t, (struct doca_dma *, doca_dma_task_memcpy_completion_cb_t, doca_dma_task_memcpy_completion_cb_t, uint32_t)) \
	X(R, dma, dma_task_memcpy_set_dst, void, (struct doca_dma_task_memcpy *, struct doca_buf *)) \
	X(R, dma, dma_task_memcpy_set_src, void, (struct doca_dma_task_memcpy *, const struct doca_buf *))

#define ZC_DOCA_RDMA(X) \
	X(R, rdma, rdma_as_ctx, struct doca_ctx *, (struct doca_rdma *)) \
	X(O, rdma, rdma_cap_get_gid, doca_error_t, (const struct doca_devinfo *, uint32_t, uint32_t, struct doca_rdma_gid *)) \
	X(O, rdma, rdma_cap_get_gid_table_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, rdma, rdma_cap_get_max_message_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, rdma, rdma_cap_get_max_recv_queue_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, rdma, rdma_cap_get_max_send_queue_size, doca_error_t, (const struct doca_devinfo *, uint32_t *)) \
	X(R, rdma, rdma_cap_task_read_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, rdma, rdma_cap_task_receive_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, rdma, rdma_cap_task_send_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, rdma, rdma_cap_task_write_is_supported, doca_error_t, (const struct doca_devinfo *)) \
	X(R, rdma, rdma_connect, doca_error_t, (struct doca_rdma *, const void *, size_t, struct doca_rdma_connection *)) \
	X(R, rdma, rdma_create, doca_error_t, (struct doca_dev *, struct doca_rdma **)) \
	X(R, rdma, rdma_destroy, doca_error_t, (struct doca_rdma *)) \
	X(R, rdma, rdma_export, doca_error_t, (struct doca_rdma *, const void **, size_t *, struct doca_rdma_connection **)) \
	X(O, rdma, rdma_set_gid_index, doca_error_t, (struct doca_rdma *, uint32_t)) \
	X(R, rdma, rdma_set_grh_enabled, doca_error_t, (struct doca_rdma *, uint8_t)) \
	X(O, rdma, rdma_set_mtu, doca_error_t, (struct doca_rdma *, uint32_t)) \
	X(R, rdma, rdma_set_permissions, doca_error_t, (struct doca_rdma *, uint32_t)) \
	X(O, rdma, rdma_set_rnr_retry_count, doca_error_t, (struct doca_rdma *, uint8_t)) \
	X(R, rdma, rdma_set_send_queue_size, doca_error_t, (struct doca_rdma *, uint32_t)) \
	X(R, rdma, rdma_task_read_allocate_init, doca_error_t, (struct doca_rdma *, struct doca_rdma_connection *, const struct doca_buf *, struct doca_buf *, union doca_data, struct doca_rdma_task_read **)) \
	X(R, rdma, rdma_task_read_as_task, struct doca_task *, (struct doca_rdma_task_read *)) \
	X(R, rdma, rdma_task_read_set_conf, doca_error_t, (struct doca_rdma *, doca_rdma_task_read_completion_cb_t, doca_rdma_task_read_completion_cb_t, uint32_t)) \
	X(R, rdma, rdma_task_receive_allocate_init, doca_error_t, (struct doca_rdma *, struct doca_buf *, union doca_data, struct doca_rdma_task_receive **)) \
	X(R, rdma, rdma_task_receive_as_task, struct doca_task *, (struct doca_rdma_task_receive *)) \
	X(R, rdma, rdma_task_receive_get_result_len, uint32_t, (const struct doca_rdma_task_receive *)) \
	X(R, rdma, rdma_task_receive_set_conf, doca_error_t, (struct doca_rdma *, doca_rdma_task_receive_completion_cb_t, doca_rdma_task_receive_completion_cb_t, uint32_t)) \
	X(R, rdma, rdma_task_send_allocate_init, doca_error_t, (struct doca_rdma *, struct doca_rdma_connection *, const struct doca_buf *, union doca_data, struct doca_rdma_task_send **)) \
	X(R, rdma, rdma_task_send_as_task, struct doca_task *, (struct doca_rdma_task_send *)) \
	X(R, rdma, rdma_task_send_set_conf, doca_error_t, (struct doca_rdma *, doca_rdma_task_send_completion_cb_t, doca_rdma_task_send_completion_cb_t, uint32_t)) \
	X(R, rdma, rdma_task_write_allocate_init, doca_error_t, (struct doca_rdma *, struct doca_rdma_connection *, const struct doca_buf *, struct doca_buf *, union doca_data, struct doca_rdma_task_write **)) \
	X(R, rdma, rdma_task_write_as_task, struct doca_task *, (struct doca_rdma_task_write *)) \
	X(R, rdma, rdma_task_write_set_conf, doca_error_t, (struct doca_rdma *, doca_rdma_task_write_completion_cb_t, doca_rdma_task_write_completion_cb_t, uint32_t))
// clang-format on

// zcd_functions is the table of all functions. An optional one may be NULL.
struct zcd_functions {
#define X(need, library, name, result, arguments) result (*name) arguments;
	ZC_DOCA_FUNCTIONS(X)
#undef X
};

typedef const struct zcd_functions *zcd_table;

enum zcd_library {
	zcd_library_common,
	zcd_library_comch,
	zcd_library_dma,
	zcd_library_rdma,
};

struct zcd_function {
	const char *name;
	uint32_t library; // enum zcd_library
	uint32_t required;
};

// zcd_functions_all names the functions in the order of struct zcd_functions.
const struct zcd_function *zcd_functions_all(void);
extern const uint32_t zcd_functions_count;

// zcd_functions_set sets the function at an index of the list.
void zcd_functions_set(struct zcd_functions *table, uint32_t index, void *function);

#endif
